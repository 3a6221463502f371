//! A run as it is watched: bars on a terminal, plain lines elsewhere, JSON where asked for.

mod bars;
pub(crate) mod numbers;
pub(crate) mod sparkline;
pub(crate) mod story;

use std::sync::Arc;

use rloom_telemetry::{Event, EventLine, Observer};

use crate::output::Output;
use bars::Bars;
use story::Story;

/// Watches a run for the user.
pub(crate) enum Watcher {
    /// Every event as a line of JSON on standard output.
    Json(Output),
    /// Words, with bars above the last line where the terminal allows it.
    Words { output: Output, story: Story, bars: Option<Arc<Bars>> },
}

impl Watcher {
    /// Shows a completion every `show_every` steps (0: never).
    pub(crate) fn new(output: Output, show_every: u64) -> Self {
        if output.json {
            return Self::Json(output);
        }
        let bars = output.live.then(|| Arc::new(Bars::new(output)));
        Self::Words { output, story: Story::new(output, show_every, bars.is_none()), bars }
    }

    /// Says something at once, from whatever thread, without tearing the bars.
    pub(crate) fn voice(&self) -> impl Fn(&str) + Send + use<> {
        let (output, bars) = match self {
            Self::Json(output) => (*output, None),
            Self::Words { output, bars, .. } => (*output, bars.clone()),
        };
        move |text: &str| match &bars {
            Some(bars) => bars.say(text),
            None => output.say(text),
        }
    }
}

impl Observer for Watcher {
    fn observe(&mut self, line: &EventLine) {
        match self {
            Self::Json(output) => {
                // A reader that went away is noticed when the run ends; it does not end the run.
                if !matches!(line.event, Event::Progress { .. }) {
                    let _ = output.json(line);
                }
            }
            Self::Words { output, story, bars } => {
                for text in story.lines(line) {
                    match bars {
                        Some(bars) => bars.say(&text),
                        None => output.say(&text),
                    }
                }
                if let Some(bars) = bars {
                    bars.show(line, story.rewards());
                }
            }
        }
    }
}
