//! Where text goes: data to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::arguments::Global;
use crate::failure::Failure;
use crate::progress::numbers::safe;

/// How to speak to the user.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, as the command line has them")]
pub(crate) struct Output {
    /// Data as JSON.
    pub(crate) json: bool,
    /// Only results, warnings and errors.
    pub(crate) quiet: bool,
    /// Colours where the next text goes: standard error, unless [`Output::on_stdout`] says otherwise.
    pub(crate) colour: bool,
    stdout_colour: bool,
    /// Standard error is a terminal that can be written over.
    pub(crate) live: bool,
}

impl Output {
    /// As options and environment say.
    pub(crate) fn new(global: &Global) -> Self {
        let terminal = io::stderr().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colours = !global.no_color && !set("NO_COLOR") && !dumb;
        Self {
            json: global.json,
            quiet: global.quiet,
            colour: terminal && colours,
            stdout_colour: io::stdout().is_terminal() && colours,
            live: terminal && !dumb && !global.quiet && !global.json,
        }
    }

    /// The same for text that is written with [`Output::data`].
    pub(crate) fn on_stdout(self) -> Self {
        Self { colour: self.stdout_colour, ..self }
    }

    /// The same, but with results, warnings and errors only.
    pub(crate) fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// A line of data.
    #[expect(clippy::unused_self, reason = "the counterpart of `say`")]
    pub(crate) fn data(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
    }

    /// A model's text as it is, except for what a terminal would obey.
    #[expect(clippy::unused_self, reason = "the counterpart of `data`")]
    pub(crate) fn model_text(self, text: &str) -> String {
        if io::stdout().is_terminal() { safe(text) } else { text.to_owned() }
    }

    /// A value as one line of JSON.
    pub(crate) fn json<T: Serialize>(self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(Failure::failed_text)?;
        self.data(&text)
    }

    /// A line for people. That it cannot be written is no reason to stop.
    pub(crate) fn say(self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// A warning.
    pub(crate) fn warn(self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{}: {text}", self.paint(YELLOW, "warning"));
    }

    /// Text in a colour, where there are colours.
    pub(crate) fn paint(self, colour: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Bold red: errors.
pub(crate) const RED: &str = "1;31";
/// Bold yellow: warnings.
pub(crate) const YELLOW: &str = "1;33";
/// Green: success.
pub(crate) const GREEN: &str = "32";
/// Cyan: hints, paths and names.
pub(crate) const CYAN: &str = "36";
/// Faint: what is there to be looked up.
pub(crate) const FAINT: &str = "2";
/// Bold: headings.
pub(crate) const BOLD: &str = "1";
