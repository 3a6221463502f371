use std::sync::Arc;

use rloom_core::{ChatMessage, Demonstration, PromptSource, Task};
use serde_json::{Map, Value};

use crate::messages::{messages, unusable, wrong_type};
use crate::{DataError, FieldProblem, FileSettings, Location, PromptFormat, Split};

type Row = Map<String, Value>;

const PROMPT_NAMES: [&str; 3] = ["prompt", "question", "messages"];
pub(crate) const ANSWER_NAMES: [&str; 2] = ["answer", "solution"];
const DEMONSTRATION_NAMES: [&str; 2] = ["demonstration", "completion"];
/// Role of the policy's messages.
const ASSISTANT: &str = "assistant";
/// Role of the results of tools.
const TOOL: &str = "tool";

/// The mapping from the fields of a file's rows to tasks.
pub(crate) struct FieldMapping {
    prompt: String,
    /// Setting that names the prompt.
    prompt_setting: &'static str,
    answer: Option<Field>,
    demonstration: Option<Field>,
    /// Requires a demonstration in every row, for the supervised split.
    needs_demonstration: bool,
    domain_field: Option<String>,
    domain: String,
    marker: String,
    /// Shared by the tasks of rows without other fields.
    no_extra: Arc<Row>,
}

/// A field that a row may have.
struct Field {
    name: String,
    /// Named in the settings, so that an unusable value is an error. In a field that was only detected it is not: nothing
    /// may read it.
    is_named: bool,
}

impl Field {
    fn find(named: Option<&String>, first: &Row, names: &[&str]) -> Option<Self> {
        match named {
            Some(name) => Some(Self { name: name.clone(), is_named: true }),
            None => first_present(first, names).map(|name| Self { name, is_named: false }),
        }
    }

    /// The value of a row, unless it is null.
    fn of<'a>(&self, row: &'a Row) -> Option<&'a Value> {
        row.get(&self.name).filter(|v| !v.is_null())
    }

    /// The result if the value is usable; `None` for an unusable value of a detected field.
    fn usable<T>(&self, result: Result<T, DataError>) -> Result<Option<T>, DataError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.is_named => Err(error),
            Err(_) => Ok(None),
        }
    }
}

/// Content of a row's answer field.
struct Answer {
    answer: String,
    /// The whole text, if only the part after a marker is the answer.
    solution: Option<String>,
}

impl FieldMapping {
    /// Uses the fields named in the settings, and finds the others in the first row of a file.
    pub(crate) fn detect(
        settings: &FileSettings,
        first: &Row,
        at: &Location,
        split: Split,
    ) -> Result<Self, DataError> {
        let prompt_setting =
            if settings.messages_field.is_some() { "messages_field" } else { "prompt_field" };
        let named_prompt = settings.prompt_field.as_ref().or(settings.messages_field.as_ref()).cloned();
        let prompt = named_prompt
            .or_else(|| first_present(first, &PROMPT_NAMES))
            .ok_or_else(|| missing(at, &PROMPT_NAMES, first, "prompt_field"))?;
        Ok(Self {
            prompt,
            prompt_setting,
            answer: Field::find(settings.answer_field.as_ref(), first, &ANSWER_NAMES),
            demonstration: Field::find(settings.demonstration_field.as_ref(), first, &DEMONSTRATION_NAMES),
            needs_demonstration: split == Split::Demonstration,
            domain_field: settings.domain_field.clone(),
            domain: settings.domain.clone(),
            marker: settings.answer_marker.clone(),
            no_extra: Arc::default(),
        })
    }

    /// Converts a row to a task. Fields that the mapping does not read become the task's `extra`.
    pub(crate) fn task(
        &self,
        index: u64,
        mut row: Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<Task, DataError> {
        let (prompt, mut demonstration) = self.prompt(&row, at, format)?;
        let mut read = vec![&self.prompt];
        let mut answer = String::new();
        if let Some(field) = &self.answer
            && let Some(value) = field.of(&row)
            && let Some(found) = field.usable(self.answer(value, &field.name, at))?
        {
            answer = found.answer;
            demonstration = demonstration.or(found.solution.map(Demonstration::from));
            read.push(&field.name);
        }
        if let Some(field) = &self.demonstration
            && let Some(value) = field.of(&row)
        {
            let found = completion(value, &field.name, at, &prompt);
            let found = if self.needs_demonstration { found.map(Some) } else { field.usable(found) };
            if let Some(found) = found? {
                demonstration = Some(found);
                read.push(&field.name);
            }
        }
        if self.needs_demonstration && demonstration.is_none() {
            let detected = self.demonstration.as_ref().map(|field| [field.name.as_str()]);
            let wanted = detected.as_ref().map_or(&DEMONSTRATION_NAMES[..], |name| &name[..]);
            return Err(missing(at, wanted, &row, "demonstration_field"));
        }
        let domain = match &self.domain_field {
            Some(field) => {
                read.push(field);
                scalar(required(&row, field, at, "domain_field")?, field, at)?
            }
            None => self.domain.clone(),
        };
        for field in read {
            row.shift_remove(field);
        }
        let extra = if row.is_empty() { Arc::clone(&self.no_extra) } else { Arc::new(row) };
        Ok(Task { index, prompt, answer, demonstration, domain, extra })
    }

    fn answer(&self, value: &Value, field: &str, at: &Location) -> Result<Answer, DataError> {
        let text = scalar(value, field, at)?;
        let answer = match after_marker(&text, &self.marker) {
            Some(marked) => Answer { answer: marked.to_owned(), solution: Some(text) },
            None => Answer { answer: text, solution: None },
        };
        if answer.answer.trim().is_empty() {
            return Err(unusable(at, field, FieldProblem::NoAnswer));
        }
        Ok(answer)
    }

    /// The prompt, and the assistant's final messages of a conversation as the demonstration.
    fn prompt(
        &self,
        row: &Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<(PromptSource, Option<Demonstration>), DataError> {
        let field = &self.prompt;
        match required(row, field, at, self.prompt_setting)? {
            Value::String(text) => Ok((format.plain(text.clone()), None)),
            Value::Array(list) => {
                let mut messages = messages(list, field, at)?;
                let last = messages.split_off(demonstration_start(&messages));
                if messages.is_empty() {
                    return Err(unusable(at, field, FieldProblem::NoPrompt));
                }
                if format.template.is_some() {
                    return Err(unusable(at, field, FieldProblem::TemplateForConversation));
                }
                Ok((format.conversation(messages), demonstration(last)))
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

/// Number of messages before the demonstration: the assistant's last message, and those that lead to it by calls whose results
/// follow them.
fn demonstration_start(messages: &[ChatMessage]) -> usize {
    let (mut start, mut end) = (messages.len(), messages.len());
    while messages[..end].last().is_some_and(|message| message.role == ASSISTANT) {
        start = end - 1;
        let results = messages[..start].iter().rev().take_while(|message| message.role == TOOL).count();
        if results == 0 {
            break;
        }
        end = start - results;
    }
    start
}

/// A demonstration: text, the texts of several turns, or messages of the assistant with results of tools between them.
fn completion(
    value: &Value,
    field: &str,
    at: &Location,
    prompt: &PromptSource,
) -> Result<Demonstration, DataError> {
    let list = match value {
        Value::String(text) => return Ok(text.clone().into()),
        Value::Array(list) => list,
        other => return Err(wrong_type(at, field, "text or a list of messages", other)),
    };
    let turns: Option<Vec<String>> = list.iter().map(|turn| turn.as_str().map(str::to_owned)).collect();
    if let Some(turns) = turns.filter(|turns| !turns.is_empty()) {
        return Ok(Demonstration::Turns(turns));
    }
    let messages = messages(list, field, at)?;
    let roles = || messages.iter().map(|message| message.role.as_str());
    if roles().next_back() != Some(ASSISTANT) {
        return Err(unusable(at, field, FieldProblem::NoCompletion));
    }
    if roles().next() != Some(ASSISTANT) || roles().any(|role| role != ASSISTANT && role != TOOL) {
        return Err(unusable(at, field, FieldProblem::OtherMessages));
    }
    let found = demonstration(messages);
    match (prompt, found) {
        (PromptSource::Text(_), Some(Demonstration::Message(_) | Demonstration::Conversation(_))) => {
            Err(unusable(at, field, FieldProblem::MessageForText))
        }
        (_, found) => found.ok_or_else(|| unusable(at, field, FieldProblem::NoMessages)),
    }
}

/// The demonstration that consists of the given messages.
fn demonstration(mut messages: Vec<ChatMessage>) -> Option<Demonstration> {
    if messages.len() > 1 {
        return Some(Demonstration::Conversation(messages));
    }
    let message = messages.pop()?;
    Some(match message.plain_text() {
        Some(text) => text.into(),
        None => Demonstration::Message(Box::new(message)),
    })
}

fn missing(at: &Location, wanted: &[&str], row: &Row, setting: &'static str) -> DataError {
    DataError::MissingField {
        at: at.clone(),
        wanted: wanted.iter().map(|&name| name.to_owned()).collect(),
        found: row.iter().filter(|(_, v)| !v.is_null()).map(|(name, _)| name.clone()).collect(),
        setting,
    }
}
