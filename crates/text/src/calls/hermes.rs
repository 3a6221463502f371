//! Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use serde_json::Value;

use super::{CallAttempt, CallStatus, Parsed, Written, attempt, reasoning};

pub(super) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";

pub(super) fn parse(written: &Written, reasons: bool) -> Parsed {
    blocks(written, reasons, |raw| {
        let raw = raw.trim();
        let Ok(call) = serde_json::from_str::<Value>(raw) else {
            return attempt(0..0, raw, CallStatus::InvalidJson);
        };
        named(raw, &call, &["arguments"])
    })
}

/// An attempt from a JSON object with a name and arguments.
pub(super) fn named(raw: &str, call: &Value, arguments: &[&str]) -> CallAttempt {
    let name = call.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let status = if name.is_some() { CallStatus::Ok } else { CallStatus::MissingName };
    let mut attempt = attempt(0..0, raw, status);
    attempt.name = name.map(str::to_owned);
    if let Some(arguments) = arguments.iter().find_map(|key| call.get(*key)) {
        attempt.arguments = decoded(arguments.clone());
    }
    attempt.id = call.get("id").and_then(Value::as_str).map(str::to_owned);
    attempt
}

/// Arguments that are a text with an object are that object.
fn decoded(arguments: Value) -> Value {
    let inner = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
    inner.filter(Value::is_object).unwrap_or(arguments)
}

/// Reads all blocks between `<tool_call>` and `</tool_call>`; `read` receives the text between them.
pub(super) fn blocks(written: &Written, reasons: bool, read: impl Fn(&str) -> CallAttempt) -> Parsed {
    let Some(start) = reasoning::end(written, reasons, Some(CALL)) else {
        return Parsed { reasoning_is_open: true, ..Parsed::default() };
    };
    let text = written.text();
    let first = written.find(CALL, start);
    let content = text[start..first.unwrap_or(text.len())].trim().to_owned();
    let mut calls = Vec::new();
    let mut next = first;
    while let Some(begin) = next {
        let inner = begin + CALL.len();
        let Some(end) = written.find(CALL_END, inner) else {
            calls.push(attempt(begin..text.len(), text[inner..].trim(), CallStatus::UnclosedBlock));
            break;
        };
        let after = end + CALL_END.len();
        calls.push(CallAttempt { span: begin..after, ..read(&text[inner..end]) });
        next = written.find(CALL, after);
    }
    Parsed { calls, content, reasoning_is_open: false }
}
