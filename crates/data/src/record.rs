use rloom_core::{ChatMessage, Demonstration, PromptSource, Task};
use serde_json::{Map, Value};

use crate::{DataError, FieldProblem, FileSettings, JsonType, Location, PromptFormat, Split};

type Row = Map<String, Value>;

const PROMPT_NAMES: [&str; 3] = ["prompt", "question", "messages"];
const ANSWER_NAMES: [&str; 2] = ["answer", "solution"];
const DEMONSTRATION_NAMES: [&str; 2] = ["demonstration", "completion"];

/// The mapping from the fields of a file's rows to tasks.
pub(crate) struct FieldMapping {
    prompt: String,
    answer: Option<String>,
    demonstration: Option<String>,
    /// Requires a demonstration in every row, for the supervised split.
    needs_demonstration: bool,
    domain_field: Option<String>,
    domain: String,
    marker: String,
}

impl FieldMapping {
    /// Uses the fields named in the settings, and finds the others in the first row of a file.
    pub(crate) fn detect(
        settings: &FileSettings,
        first: &Row,
        at: &Location,
        split: Split,
    ) -> Result<Self, DataError> {
        let named_prompt = settings.prompt_field.as_ref().or(settings.messages_field.as_ref()).cloned();
        let prompt = named_prompt
            .or_else(|| first_present(first, &PROMPT_NAMES))
            .ok_or_else(|| missing(at, &PROMPT_NAMES, first, "prompt_field"))?;
        let demonstration =
            settings.demonstration_field.clone().or_else(|| first_present(first, &DEMONSTRATION_NAMES));
        let answer = settings.answer_field.clone().or_else(|| first_present(first, &ANSWER_NAMES));
        let needs_demonstration = split == Split::Demonstration;
        if answer.is_none() && !needs_demonstration {
            return Err(missing(at, &ANSWER_NAMES, first, "answer_field"));
        }
        Ok(Self {
            prompt,
            answer,
            demonstration,
            needs_demonstration,
            domain_field: settings.domain_field.clone(),
            domain: settings.domain.clone(),
            marker: settings.answer_marker.clone(),
        })
    }

    /// Converts a row to a task.
    pub(crate) fn task(
        &self,
        index: u64,
        row: &Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<Task, DataError> {
        let (prompt, mut demonstration) = self.prompt(row, at, format)?;
        let mut answer = String::new();
        if let Some(field) = &self.answer {
            let text = scalar(required(row, field, at, "answer_field")?, field, at)?;
            answer = match after_marker(&text, &self.marker) {
                Some(marked) => {
                    let marked = marked.to_owned();
                    demonstration = demonstration.or(Some(text));
                    marked
                }
                None => text,
            };
            if answer.trim().is_empty() {
                return Err(unusable(at, field, FieldProblem::NoAnswer));
            }
        }
        if let Some(field) = &self.demonstration {
            demonstration = Some(completion(required(row, field, at, "demonstration_field")?, field, at)?);
        }
        if self.needs_demonstration && demonstration.is_none() {
            return Err(missing(at, &DEMONSTRATION_NAMES, row, "demonstration_field"));
        }
        let domain = match &self.domain_field {
            Some(field) => scalar(required(row, field, at, "domain_field")?, field, at)?,
            None => self.domain.clone(),
        };
        Ok(Task { index, prompt, answer, demonstration: demonstration.map(Demonstration::from), domain })
    }

    /// The prompt, and the final assistant message of a conversation as the demonstration.
    fn prompt(
        &self,
        row: &Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<(PromptSource, Option<String>), DataError> {
        let field = &self.prompt;
        match required(row, field, at, "prompt_field")? {
            Value::String(text) => Ok((format.plain(text.clone()), None)),
            Value::Array(list) => {
                let mut messages = messages(list, field, at)?;
                let ends_with_assistant = messages.last().is_some_and(|m| m.role == "assistant");
                let demonstration =
                    if ends_with_assistant { messages.pop().map(|m| m.content) } else { None };
                if messages.is_empty() {
                    return Err(unusable(at, field, FieldProblem::NoPrompt));
                }
                if format.template.is_some() {
                    return Err(unusable(at, field, FieldProblem::TemplateForConversation));
                }
                Ok((format.conversation(messages), demonstration))
            }
            other => Err(wrong_type(at, field, "text or a list of messages", other)),
        }
    }
}

/// The text after the last marker.
fn after_marker<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    if marker.is_empty() {
        return None;
    }
    text.rsplit_once(marker).map(|(_, answer)| answer.trim())
}

/// A required field; null counts as absent.
fn required<'a>(
    row: &'a Row,
    field: &str,
    at: &Location,
    setting: &'static str,
) -> Result<&'a Value, DataError> {
    row.get(field).filter(|v| !v.is_null()).ok_or_else(|| missing(at, &[field], row, setting))
}

fn first_present(row: &Row, names: &[&str]) -> Option<String> {
    names.iter().find(|&&name| row.get(name).is_some_and(|v| !v.is_null())).map(|&name| name.to_owned())
}

fn scalar(value: &Value, field: &str, at: &Location) -> Result<String, DataError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(wrong_type(at, field, "text or a number", other)),
    }
}

/// The text of a completion, or the last message of a conversation.
fn completion(value: &Value, field: &str, at: &Location) -> Result<String, DataError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(list) => match messages(list, field, at)?.pop() {
            Some(last) if last.role == "assistant" => Ok(last.content),
            _ => Err(unusable(at, field, FieldProblem::NoCompletion)),
        },
        other => Err(wrong_type(at, field, "text or a list of messages", other)),
    }
}

fn messages(list: &[Value], field: &str, at: &Location) -> Result<Vec<ChatMessage>, DataError> {
    if list.is_empty() {
        return Err(unusable(at, field, FieldProblem::NoMessages));
    }
    list.iter()
        .enumerate()
        .map(|(i, value)| {
            let part = |name: &str| {
                let path = format!("{field}[{i}].{name}");
                match value.get(name) {
                    Some(Value::String(text)) => Ok(text.clone()),
                    Some(other) => Err(wrong_type(at, &path, "text", other)),
                    None => Err(wrong_type(at, &path, "text", &Value::Null)),
                }
            };
            Ok(ChatMessage { role: part("role")?, content: part("content")? })
        })
        .collect()
}

fn missing(at: &Location, wanted: &[&str], row: &Row, setting: &'static str) -> DataError {
    DataError::MissingField {
        at: at.clone(),
        wanted: wanted.iter().map(|&name| name.to_owned()).collect(),
        found: row.iter().filter(|(_, v)| !v.is_null()).map(|(name, _)| name.clone()).collect(),
        setting,
    }
}

fn wrong_type(at: &Location, field: &str, expected: &'static str, found: &Value) -> DataError {
    DataError::WrongType { at: at.clone(), field: field.to_owned(), expected, found: JsonType::of(found) }
}

fn unusable(at: &Location, field: &str, problem: FieldProblem) -> DataError {
    DataError::Field { at: at.clone(), field: field.to_owned(), problem }
}
