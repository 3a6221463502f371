//! Output of commands: data goes to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::arguments::Global;
use crate::failure::Failure;
use crate::progress::numbers::sanitize;

/// Output settings of a command.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the command line")]
pub(crate) struct Output {
    /// Write data as JSON.
    pub(crate) json: bool,
    /// Print only results, warnings and errors.
    pub(crate) quiet: bool,
    /// Use colours: on standard error, or on standard output after [`Output::on_stdout`].
    pub(crate) colour: bool,
    stdout_colour: bool,
    /// Standard error is a terminal that supports redrawing.
    pub(crate) live: bool,
}

impl Output {
    /// Determines the settings from the options, the environment and the terminal.
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

    /// Returns the settings for text on standard output, written with [`Output::data`].
    pub(crate) fn on_stdout(self) -> Self {
        Self { colour: self.stdout_colour, ..self }
    }

    /// The same, but with results, warnings and errors only.
    pub(crate) fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// Writes a line of data.
    #[expect(clippy::unused_self, reason = "the counterpart of `info`")]
    pub(crate) fn data(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
    }

    /// Text of a model for standard output: on a terminal, control characters are replaced.
    #[expect(clippy::unused_self, reason = "the counterpart of `data`")]
    pub(crate) fn model_text(self, text: &str) -> String {
        if io::stdout().is_terminal() { sanitize(text) } else { text.to_owned() }
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json<T: Serialize>(self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(Failure::failed_text)?;
        self.data(&text)
    }

    /// Writes an informational line unless `--quiet` is set. Write errors are ignored.
    pub(crate) fn info(self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// Writes a warning.
    pub(crate) fn warn(self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{}: {text}", self.paint(YELLOW, "warning"));
    }

    /// Colours the text if colours are enabled.
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
/// Faint: secondary information.
pub(crate) const FAINT: &str = "2";
/// Bold: headings.
pub(crate) const BOLD: &str = "1";
