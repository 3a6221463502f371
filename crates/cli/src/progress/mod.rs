//! Progress output of a run: bars on a terminal, lines of text elsewhere, JSON if requested.

mod bars;
pub(crate) mod event_text;
pub(crate) mod numbers;
pub(crate) mod sparkline;

use std::sync::Arc;

use rloom_telemetry::{Event, EventLine, Observer};

use crate::output::Output;
use bars::Bars;
use event_text::EventText;

/// Prints the events of a run.
pub(crate) enum ProgressOutput {
    /// Prints every event as a line of JSON on standard output.
    Json(Output),
    /// Prints text on standard error, with bars if it is a terminal.
    Text { output: Output, lines: EventText, bars: Option<Arc<Bars>> },
}

impl ProgressOutput {
    /// Also shows a completion every `show_every` steps (0: never).
    pub(crate) fn new(output: Output, show_every: u64) -> Self {
        if output.json {
            return Self::Json(output);
        }
        let bars = output.live.then(|| Arc::new(Bars::new(output)));
        Self::Text { output, lines: EventText::new(output, show_every, bars.is_none()), bars }
    }

    /// Returns a function that prints a line from any thread without disturbing the bars.
    pub(crate) fn printer(&self) -> impl Fn(&str) + Send + use<> {
        let (output, bars) = match self {
            Self::Json(output) => (*output, None),
            Self::Text { output, bars, .. } => (*output, bars.clone()),
        };
        move |text: &str| match &bars {
            Some(bars) => bars.println(text),
            None => output.info(text),
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
