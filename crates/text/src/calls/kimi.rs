//! Kimi K2: in a section, the identifier `functions.name:0` and a JSON object for each call.

use serde_json::Value;

use super::{CallAttempt, CallStatus, Parsed, Written, attempt, reasoning};

pub(super) const SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
pub(super) const SECTION_END: &str = "<|tool_calls_section_end|>";
pub(super) const CALL_BEGIN: &str = "<|tool_call_begin|>";
pub(super) const ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";
pub(super) const CALL_END: &str = "<|tool_call_end|>";

pub(super) fn parse(written: &Written, reasons: bool) -> Parsed {
    let Some(start) = reasoning::end(written, reasons, Some(SECTION_BEGIN)) else {
        return Parsed { reasoning_is_open: true, ..Parsed::default() };
    };
    let text = written.text();
    let Some(section) = written.find(SECTION_BEGIN, start) else {
        return Parsed { content: text[start..].trim().to_owned(), ..Parsed::default() };
    };
    let inner = section + SECTION_BEGIN.len();
    let section_end = written.find(SECTION_END, inner).unwrap_or(text.len());
    let mut calls = Vec::new();
    let mut next = written.find_in(CALL_BEGIN, inner, section_end);
    while let Some(begin) = next {
        let from = begin + CALL_BEGIN.len();
        let Some(arguments) = written.find_in(ARGUMENT_BEGIN, from, section_end) else {
            let raw = &text[from..section_end];
            calls.push(attempt(begin..section_end, raw, CallStatus::MalformedStructure));
            break;
        };
        let closed = written.find_in(CALL_END, arguments, section_end);
        let end = closed.unwrap_or(section_end);
        let after = closed.map_or(end, |end| end + CALL_END.len());
        let id = text[from..arguments].trim();
        let body = text[arguments + ARGUMENT_BEGIN.len()..end].trim();
        let mut call = read(id, body, closed.is_some());
        text[from..end].clone_into(&mut call.raw);
        calls.push(CallAttempt { span: begin..after, ..call });
        next = written.find_in(CALL_BEGIN, after, section_end);
    }
    Parsed { calls, content: text[start..section].trim().to_owned(), reasoning_is_open: false }
}

fn read(id: &str, body: &str, is_closed: bool) -> CallAttempt {
    let name = id.split(':').next().unwrap_or_default();
    let name = name.split_once('.').map_or(name, |(_, name)| name);
    let arguments = serde_json::from_str::<Value>(body);
    let status = match &arguments {
        _ if !is_closed => CallStatus::UnclosedBlock,
        _ if name.is_empty() => CallStatus::MissingName,
        Err(_) => CallStatus::InvalidJson,
        Ok(_) => CallStatus::Ok,
    };
    let mut call = attempt(0..0, "", status);
    call.name = (!name.is_empty()).then(|| name.to_owned());
    call.id = (!id.is_empty()).then(|| id.to_owned());
    call.arguments = arguments.unwrap_or_else(|_| Value::String(body.to_owned()));
    call
}
