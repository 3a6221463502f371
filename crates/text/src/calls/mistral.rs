//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]`, or `[TOOL_CALLS]name[ARGS]{…}` once per call.

use serde_json::Value;

use super::{CallAttempt, CallStatus, Parsed, Written, attempt, hermes};

pub(super) const CALLS: &str = "[TOOL_CALLS]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";

pub(super) fn parse(written: &Written) -> Parsed {
    let text = written.text();
    let Some(first) = written.find(CALLS, 0) else {
        return Parsed { content: text.trim().to_owned(), ..Parsed::default() };
    };
    let mut calls = Vec::new();
    let mut next = Some(first);
    while let Some(begin) = next {
        let inner = begin + CALLS.len();
        next = written.find(CALLS, inner);
        let end = next.unwrap_or(text.len());
        read(written, begin..end, inner, &mut calls);
    }
    Parsed { calls, content: text[..first].trim().to_owned(), reasoning_is_open: false }
}

/// Reads the calls after one mark.
fn read(written: &Written, span: std::ops::Range<usize>, inner: usize, calls: &mut Vec<CallAttempt>) {
    let raw = written.text()[inner..span.end].trim();
    if raw.starts_with(['[', '{']) && !raw.starts_with(ARGUMENTS) {
        return match serde_json::from_str::<Value>(raw) {
            Ok(Value::Array(list)) if !list.is_empty() => calls.extend(list.iter().map(|call| {
                let one = hermes::named(&call.to_string(), call, &["arguments", "parameters"]);
                CallAttempt { span: span.clone(), ..one }
            })),
            Ok(call @ Value::Object(_)) => {
                calls.push(CallAttempt { span, ..hermes::named(raw, &call, &["arguments", "parameters"]) });
            }
            Ok(_) => calls.push(attempt(span, raw, CallStatus::MalformedStructure)),
            Err(_) => calls.push(attempt(span, raw, CallStatus::InvalidJson)),
        };
    }
    let Some(arguments) = written.find_in(ARGUMENTS, inner, span.end) else {
        return calls.push(attempt(span, raw, CallStatus::MalformedStructure));
    };
    let header = &written.text()[inner..arguments];
    let (name, id) = match written.find_in(CALL_ID, inner, arguments) {
        Some(id) => (&written.text()[inner..id], Some(&written.text()[id + CALL_ID.len()..arguments])),
        None => (header, None),
    };
    let name = name.trim();
    let body = written.text()[arguments + ARGUMENTS.len()..span.end].trim();
    let value = serde_json::from_str::<Value>(body);
    let status = match (&value, name.is_empty()) {
        (_, true) => CallStatus::MissingName,
        (Err(_), _) => CallStatus::InvalidJson,
        (Ok(_), _) => CallStatus::Ok,
    };
    let mut call = attempt(span, raw, status);
    call.name = (!name.is_empty()).then(|| name.to_owned());
    call.id = id.map(|id| id.trim().to_owned());
    call.arguments = value.unwrap_or_else(|_| Value::String(body.to_owned()));
    calls.push(call);
}
