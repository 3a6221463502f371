//! Llama 3: the whole turn is one JSON object, `{"name": …, "parameters": {…}}`.

use serde_json::Value;

use super::{CallAttempt, CallStatus, Parsed, Written, attempt, hermes};

pub(super) const MARK: &str = "<|python_tag|>";

/// Text that is no such object is an answer: nothing marks an attempt, unless the turn begins with the token for one.
pub(super) fn parse(written: &Written) -> Parsed {
    let text = written.text();
    let is_marked = text.trim_start().starts_with(MARK);
    let raw = text.trim().strip_prefix(MARK).unwrap_or(text).trim();
    let is_object = raw.starts_with('{') && raw.ends_with('}');
    let call = is_object.then(|| serde_json::from_str::<Value>(raw).ok()).flatten();
    let span = 0..text.len();
    let read = call.map(|call| hermes::named(raw, &call, &["parameters", "arguments"]));
    match read {
        Some(call) if call.status == CallStatus::Ok || is_marked => {
            Parsed { calls: vec![CallAttempt { span, ..call }], ..Parsed::default() }
        }
        _ if is_marked => {
            Parsed { calls: vec![attempt(span, raw, CallStatus::InvalidJson)], ..Parsed::default() }
        }
        _ => Parsed { content: text.trim().to_owned(), ..Parsed::default() },
    }
}
