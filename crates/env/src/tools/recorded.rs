//! Results of calls that a demonstration records.

use rloom_core::{ChatMessage, Content};
use rloom_text::calls::CallFormat;
use serde_json::Value;

/// Results that do not belong to the calls of their turn.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub(super) enum RecordedProblem {
    #[error(
        "the demonstration has {calls} calls in the format `{}` in turn {turn}, but {results} results",
        format.name()
    )]
    Count { turn: u32, format: CallFormat, calls: usize, results: usize },
    #[error("the demonstration has a result for call {call} of turn {turn}, which would not run: {reason}")]
    Refused { turn: u32, call: usize, reason: String },
}

/// The text of a result.
pub(super) fn result_text(message: &ChatMessage) -> String {
    match &message.content {
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
        }
        None => String::new(),
    }
}
