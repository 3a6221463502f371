//! DeepSeek V3: in a section, `function`, a separator, the name and a fenced block of JSON for each call.

use serde_json::{Map, Value};

use super::{CallAttempt, CallStatus, Parsed, Written, attempt, reasoning};

pub(super) const SECTION_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const SECTION_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(super) fn parse(written: &Written, reasons: bool) -> Parsed {
    let Some(start) = reasoning::end(written, reasons, None) else {
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
        let closed = written.find_in(CALL_END, from, section_end);
        let end = closed.unwrap_or(section_end);
        let after = closed.map_or(end, |end| end + CALL_END.len());
        let mut call = read(written, from, end);
        if closed.is_none() && call.status != CallStatus::MalformedStructure {
            call.status = CallStatus::UnclosedBlock;
        }
        calls.push(CallAttempt { span: begin..after, ..call });
        next = written.find_in(CALL_BEGIN, after, section_end);
    }
    Parsed { calls, content: text[start..section].trim().to_owned(), reasoning_is_open: false }
}

fn read(written: &Written, from: usize, end: usize) -> CallAttempt {
    let raw = &written.text()[from..end];
    let Some(separator) = written.find_in(SEPARATOR, from, end) else {
        return attempt(0..0, raw, CallStatus::MalformedStructure);
    };
    let after = written.text()[separator + SEPARATOR.len()..end].trim();
    let (name, rest) = after.split_once('\n').unwrap_or((after, ""));
    let (name, body) = (name.trim(), unfenced(rest.trim()));
    let arguments =
        if body.is_empty() { Ok(Value::Object(Map::new())) } else { serde_json::from_str::<Value>(body) };
    let status = match (&arguments, name.is_empty()) {
        (_, true) => CallStatus::MissingName,
        (Err(_), _) => CallStatus::InvalidJson,
        (Ok(_), _) => CallStatus::Ok,
    };
    let mut call = attempt(0..0, raw, status);
    call.name = (!name.is_empty()).then(|| name.to_owned());
    call.arguments = arguments.unwrap_or_else(|_| Value::String(body.to_owned()));
    call
}

/// The content of a fenced block.
fn unfenced(text: &str) -> &str {
    let fenced = text.strip_prefix("```").and_then(|inner| inner.strip_suffix("```"));
    fenced.map_or(text, |inner| inner.strip_prefix("json").unwrap_or(inner).trim())
}
