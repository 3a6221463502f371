//! Conversations in rows: every field of a message is either passed on to the chat template or refused.

use rloom_core::{ChatMessage, Content};
use serde_json::{Map, Value};

use crate::{DataError, FieldProblem, JsonType, Location};

/// Expected type of a message's content.
const CONTENT: &str = "text or a list of text parts";

/// The messages in the field `field` of a row; at least one.
pub(crate) fn messages(list: &[Value], field: &str, at: &Location) -> Result<Vec<ChatMessage>, DataError> {
    if list.is_empty() {
        return Err(unusable(at, field, FieldProblem::NoMessages));
    }
    let numbered = list.iter().enumerate();
    numbered.map(|(i, value)| message(value, &format!("{field}[{i}]"), at)).collect()
}

/// The message in the field `path`. Fields that are null count as absent, as in `transformers`: Parquet files have the
/// fields of all messages in each of them.
fn message(value: &Value, path: &str, at: &Location) -> Result<ChatMessage, DataError> {
    let Value::Object(object) = value else { return Err(wrong_type(at, path, "a message", value)) };
    let mut fields = without_nulls(object);
    let role = match fields.shift_remove("role") {
        Some(Value::String(role)) => role,
        other => return Err(wrong_type(at, &format!("{path}.role"), "text", &other.unwrap_or_default())),
    };
    let content_path = format!("{path}.content");
    let content = match fields.shift_remove("content") {
        Some(Value::String(text)) => Some(Content::Text(text)),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate();
            let parts = parts.map(|(i, value)| part(value, &format!("{content_path}[{i}]"), at));
            Some(Content::Parts(parts.collect::<Result<_, _>>()?))
        }
        // A call of a tool often has no content.
        None if !fields.is_empty() => None,
        other => return Err(wrong_type(at, &content_path, CONTENT, &other.unwrap_or_default())),
    };
    Ok(ChatMessage { role, content, fields })
}

/// A part of a message's content, which must be text.
fn part(value: &Value, path: &str, at: &Location) -> Result<Map<String, Value>, DataError> {
    let Value::Object(object) = value else { return Err(wrong_type(at, path, "a text part", value)) };
    let part = without_nulls(object);
    match part.get("type") {
        Some(Value::String(kind)) if kind == "text" => {}
        Some(Value::String(kind)) => {
            return Err(unusable(at, path, FieldProblem::PartType { kind: kind.clone() }));
        }
        other => {
            let found = other.cloned().unwrap_or_default();
            return Err(wrong_type(at, &format!("{path}.type"), "text", &found));
        }
    }
    match part.get("text") {
        Some(Value::String(_)) => Ok(part),
        other => {
            let found = other.cloned().unwrap_or_default();
            Err(wrong_type(at, &format!("{path}.text"), "text", &found))
        }
    }
}

fn without_nulls(object: &Map<String, Value>) -> Map<String, Value> {
    object.iter().filter(|(_, v)| !v.is_null()).map(|(name, v)| (name.clone(), v.clone())).collect()
}

pub(crate) fn wrong_type(at: &Location, field: &str, expected: &'static str, found: &Value) -> DataError {
    DataError::WrongType { at: at.clone(), field: field.to_owned(), expected, found: JsonType::of(found) }
}

pub(crate) fn unusable(at: &Location, field: &str, problem: FieldProblem) -> DataError {
    DataError::Field { at: at.clone(), field: field.to_owned(), problem }
}
