use rloom_core::{ChatMessage, PromptSource, Task, WorkedExample};
use serde_json::{Map, Value};

use crate::{DataError, FileSettings, Location, Presentation, Split};

type Row = Map<String, Value>;

const PROMPT_NAMES: [&str; 3] = ["prompt", "question", "messages"];
const ANSWER_NAMES: [&str; 2] = ["answer", "solution"];
const DEMONSTRATION_NAMES: [&str; 2] = ["demonstration", "completion"];

/// Which field of a file's rows is what, and how an answer is read.
pub(crate) struct Mapping {
    prompt: String,
    answer: Option<String>,
    demonstration: Option<String>,
    /// The supervised split was asked for: a row without a demonstration has nothing to say.
    needs_demonstration: bool,
    domain_field: Option<String>,
    domain: String,
    marker: String,
}

impl Mapping {
    /// Takes the named fields, and finds the others in the first row of a file.
    pub(crate) fn find(
        settings: &FileSettings,
        first: &Row,
        at: &Location,
        split: Split,
    ) -> Result<Self, DataError> {
        let named_prompt = settings.prompt_field.as_ref().or(settings.messages_field.as_ref()).cloned();
        let prompt = named_prompt
            .or_else(|| present(first, &PROMPT_NAMES))
            .ok_or_else(|| missing(at, &PROMPT_NAMES, first, "prompt_field"))?;
        let demonstration =
            settings.demonstration_field.clone().or_else(|| present(first, &DEMONSTRATION_NAMES));
        let answer = settings.answer_field.clone().or_else(|| present(first, &ANSWER_NAMES));
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

    /// Makes a task of a row.
    pub(crate) fn task(
        &self,
        index: u64,
        row: &Row,
        at: &Location,
        presentation: &Presentation,
    ) -> Result<Task, DataError> {
        let (prompt, mut demonstration) = self.prompt(row, at, presentation)?;
        let mut answer = String::new();
        if let Some(field) = &self.answer {
            let text = scalar(get(row, field, at, "answer_field")?, field, at)?;
            answer = match after_marker(&text, &self.marker) {
                Some(marked) => {
                    let marked = marked.to_owned();
                    demonstration = demonstration.or(Some(text));
                    marked
                }
                None => text,
            };
            if answer.trim().is_empty() {
                return Err(DataError::Unusable {
                    at: at.clone(),
                    problem: format!("`{field}` holds no answer"),
                });
            }
        }
        if let Some(field) = &self.demonstration {
            demonstration = Some(completion(get(row, field, at, "demonstration_field")?, field, at)?);
        }
        if self.needs_demonstration && demonstration.is_none() {
            return Err(missing(at, &DEMONSTRATION_NAMES, row, "demonstration_field"));
        }
        let domain = match &self.domain_field {
            Some(field) => scalar(get(row, field, at, "domain_field")?, field, at)?,
            None => self.domain.clone(),
        };
        Ok(Task { index, prompt, answer, demonstration: demonstration.map(WorkedExample::from), domain })
    }

    /// The prompt, and the demonstration that a conversation may end in.
    fn prompt(
        &self,
        row: &Row,
        at: &Location,
        presentation: &Presentation,
    ) -> Result<(PromptSource, Option<String>), DataError> {
        let field = &self.prompt;
        match get(row, field, at, "prompt_field")? {
            Value::String(text) => Ok((presentation.plain(text.clone()), None)),
            Value::Array(list) => {
                let mut messages = messages(list, field, at)?;
                let ends_in_answer = messages.last().is_some_and(|m| m.role == "assistant");
                let demonstration = if ends_in_answer { messages.pop().map(|m| m.content) } else { None };
                if messages.is_empty() {
                    let problem = format!("`{field}` holds no message before the assistant's");
                    return Err(DataError::Unusable { at: at.clone(), problem });
                }
                if presentation.template.is_some() {
                    let problem = format!(
                        "`{field}` is a conversation, but `template` is for plain prompts\nhint: leave `template` out"
                    );
                    return Err(DataError::Unusable { at: at.clone(), problem });
                }
                Ok((presentation.conversation(messages), demonstration))
            }
            other => Err(wrong(at, field, "text or a list of messages", other)),
        }
    }
}

/// Where a dataset writes its answer at the end of a solution.
fn after_marker<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    if marker.is_empty() {
        return None;
    }
    text.rsplit_once(marker).map(|(_, answer)| answer.trim())
}

/// A field that must be there: a null counts as absent.
fn get<'a>(row: &'a Row, field: &str, at: &Location, setting: &'static str) -> Result<&'a Value, DataError> {
    row.get(field).filter(|v| !v.is_null()).ok_or_else(|| missing(at, &[field], row, setting))
}

fn present(row: &Row, names: &[&str]) -> Option<String> {
    names.iter().find(|&&name| row.get(name).is_some_and(|v| !v.is_null())).map(|&name| name.to_owned())
}

fn scalar(value: &Value, field: &str, at: &Location) -> Result<String, DataError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(wrong(at, field, "text or a number", other)),
    }
}

/// A completion is text, or a conversation's last turn.
fn completion(value: &Value, field: &str, at: &Location) -> Result<String, DataError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(list) => match messages(list, field, at)?.pop() {
            Some(last) if last.role == "assistant" => Ok(last.content),
            _ => Err(DataError::Unusable {
                at: at.clone(),
                problem: format!("`{field}` does not end in a message of the assistant"),
            }),
        },
        other => Err(wrong(at, field, "text or a list of messages", other)),
    }
}

fn messages(list: &[Value], field: &str, at: &Location) -> Result<Vec<ChatMessage>, DataError> {
    if list.is_empty() {
        return Err(DataError::Unusable { at: at.clone(), problem: format!("`{field}` holds no message") });
    }
    list.iter()
        .enumerate()
        .map(|(i, value)| {
            let part = |name: &str| {
                let path = format!("{field}[{i}].{name}");
                match value.get(name) {
                    Some(Value::String(text)) => Ok(text.clone()),
                    Some(other) => Err(wrong(at, &path, "text", other)),
                    None => Err(wrong(at, &path, "text", &Value::Null)),
                }
            };
            Ok(ChatMessage { role: part("role")?, content: part("content")? })
        })
        .collect()
}

fn missing(at: &Location, wanted: &[&str], row: &Row, setting: &'static str) -> DataError {
    let list = |names: &mut dyn Iterator<Item = &str>, joint: &str| {
        names.map(|n| format!("`{n}`")).collect::<Vec<_>>().join(joint)
    };
    let found = list(&mut row.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str()), ", ");
    DataError::MissingField {
        at: at.clone(),
        wanted: list(&mut wanted.iter().copied(), " or "),
        found: if found.is_empty() { "no field".into() } else { found },
        setting,
    }
}

fn wrong(at: &Location, field: &str, expected: &'static str, found: &Value) -> DataError {
    DataError::WrongType { at: at.clone(), field: field.to_owned(), expected, found: type_name(found).into() }
}

/// A JSON value's kind, with its article.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
