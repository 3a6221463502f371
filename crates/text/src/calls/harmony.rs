//! Harmony, the format of gpt-oss: messages in channels; one to `functions.name` is a call.

use serde_json::Value;

use super::{CallStatus, Parsed, Written, attempt};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 3] = ["<|end|>", "<|call|>", "<|return|>"];
const RECIPIENT: &str = "to=functions.";

/// The prompt ends with the role of the first message: its header begins with the turn.
pub(super) fn parse(written: &Written) -> Parsed {
    let text = written.text();
    let mut parsed = Parsed::default();
    let mut begin = 0;
    while let Some(message) = written.find(MESSAGE, begin) {
        let header = &text[begin..message];
        let body = message + MESSAGE.len();
        let closed = ENDS.iter().filter_map(|mark| Some((written.find(mark, body)?, *mark))).min();
        let opened = written.find(START, body);
        let end = closed.map(|(place, _)| place).into_iter().chain(opened).min().unwrap_or(text.len());
        let closing = closed.filter(|(place, _)| *place == end).map(|(_, mark)| mark);
        let after = end + closing.map_or(0, str::len);
        let content = &text[body..end];
        if let Some((_, recipient)) = header.split_once(RECIPIENT) {
            let is_end = |c: char| c.is_whitespace() || c == '<';
            let name = &recipient[..recipient.find(is_end).unwrap_or(recipient.len())];
            let arguments = serde_json::from_str::<Value>(content);
            let status = match &arguments {
                Err(_) => CallStatus::InvalidJson,
                Ok(_) if closing.is_none() => CallStatus::UnclosedBlock,
                Ok(_) if name.is_empty() => CallStatus::MissingName,
                Ok(_) => CallStatus::Ok,
            };
            let mut call = attempt(begin..after, content, status);
            call.name = (!name.is_empty()).then(|| name.to_owned());
            call.arguments = arguments.unwrap_or_else(|_| Value::String(content.to_owned()));
            parsed.calls.push(call);
        } else {
            match channel(header) {
                Some("analysis") => parsed.reasoning_is_open = end == text.len(),
                Some("final" | "commentary") => parsed.content.push_str(content.trim()),
                _ => {}
            }
        }
        begin = after;
    }
    parsed
}

/// The messages in the channel of the reasoning.
pub(super) fn reasoning(written: &Written) -> String {
    let text = written.text();
    let (mut begin, mut parts) = (0, Vec::new());
    while let Some(message) = written.find(MESSAGE, begin) {
        let body = message + MESSAGE.len();
        let marks = ENDS.iter().chain([&START]);
        let end = marks.filter_map(|mark| written.find(mark, body)).min().unwrap_or(text.len());
        if channel(&text[begin..message]) == Some("analysis") {
            parts.push(text[body..end].trim());
        }
        begin = end;
    }
    parts.join("\n")
}

fn channel(header: &str) -> Option<&str> {
    header.split_once(CHANNEL)?.1.split_whitespace().next().map(|name| name.split('<').next().unwrap_or(name))
}
