//! A run as it is watched: bars on a terminal, plain lines elsewhere, JSON where asked for.

mod background;
mod bars;
pub(crate) mod numbers;
pub(crate) mod sparkline;
pub(crate) mod story;

use rloom_telemetry::{Event, EventLine, Observer};
use serde_json::json;

use crate::output::Output;
use bars::Bars;

pub(crate) use background::Display;

use story::Story;

/// Watches a run for the user.
#[expect(clippy::large_enum_variant, reason = "there is one, and it does not move")]
pub(crate) enum Watcher {
    /// Every event as a line of JSON on standard output.
    Json(Output),
    /// Words, with bars above the last line where the terminal allows it.
    Words { output: Output, story: Story, bars: Option<Bars> },
}

impl Watcher {
    /// Shows a completion every `show_every` steps (0: never).
    pub(crate) fn new(output: Output, show_every: u64) -> Self {
        if output.json {
            return Self::Json(output);
        }
        let bars = output.live.then(|| Bars::new(output));
        Self::Words { output, story: Story::new(output, show_every, bars.is_none()), bars }
    }

    /// Writes a line above the bars.
    fn say(&self, text: &str) {
        match self {
            Self::Words { bars: Some(bars), .. } => bars.say(text),
            Self::Json(output) | Self::Words { output, .. } => output.say(text),
        }
    }

    /// Reports events that were not shown because the output was blocked.
    fn lost(&self, count: u64) {
        match self {
            Self::Json(output) => {
                let _ = output.json(&json!({"event": "events_not_shown", "count": count}));
            }
            Self::Words { .. } => self.say(&format!("{count} events were not shown: the output was blocked")),
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
