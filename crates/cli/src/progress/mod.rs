//! Progress output of a run: bars on a terminal, lines of text elsewhere, JSON if requested.

mod background;
mod bars;
pub(crate) mod downloads;
pub(crate) mod event_text;
pub(crate) mod numbers;
pub(crate) mod sparkline;
#[cfg(test)]
mod test_screen;

use rloom_telemetry::{Event, EventLine, Observer};
use serde_json::json;

use crate::output::Output;
use bars::Bars;
use downloads::DownloadScreen;

pub(crate) use background::Display;

use event_text::EventText;

/// Prints the events of a run.
#[expect(clippy::large_enum_variant, reason = "there is one, and it does not move")]
pub(crate) enum ProgressOutput {
    /// Prints every event as a line of JSON on standard output.
    Json(Output),
    /// Prints text on standard error, with bars if it is a terminal.
    Text { output: Output, lines: EventText, bars: Option<Bars> },
}

impl ProgressOutput {
    /// Also shows a completion every `show_every` steps (0: never).
    pub(crate) fn new(output: Output, show_every: u64) -> Self {
        if output.json {
            return Self::Json(output);
        }
        let bars = output.live.then(|| Bars::new(output));
        Self::Text { output, lines: EventText::new(output, show_every, bars.is_none()), bars }
    }

    /// The screen of downloads, above the bars.
    fn download_screen(&self) -> DownloadScreen {
        match self {
            Self::Json(output) => DownloadScreen::on(*output, None),
            Self::Text { output, bars, .. } => DownloadScreen::on(*output, bars.as_ref().map(Bars::screen)),
        }
    }

    /// Writes a line above the bars.
    fn println(&self, text: &str) {
        match self {
            Self::Text { bars: Some(bars), .. } => bars.println(text),
            Self::Json(output) | Self::Text { output, .. } => output.info(text),
        }
    }

    /// Reports events that were not shown because the output was blocked.
    fn lost(&self, count: u64) {
        match self {
            Self::Json(output) => {
                let _ = output.json(&json!({"event": "events_not_shown", "count": count}));
            }
            Self::Text { .. } => {
                self.println(&format!("{count} events were not shown: the output was blocked"));
            }
        }
    }
}

impl Observer for ProgressOutput {
    fn observe(&mut self, line: &EventLine) {
        match self {
            Self::Json(output) => {
                // A closed pipe must not end the run; it is reported when the run ends.
                if !matches!(line.event, Event::Progress { .. }) {
                    let _ = output.json(line);
                }
            }
            Self::Text { output, lines, bars } => {
                for text in lines.of(line) {
                    match bars {
                        Some(bars) => bars.println(&text),
                        None => output.info(&text),
                    }
                }
                if let Some(bars) = bars {
                    bars.update(line, lines.rewards());
                }
            }
        }
    }
}
