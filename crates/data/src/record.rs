use std::sync::Arc;

use rloom_core::{ChatMessage, Demonstration, LossOn, PromptSource, Task};
use serde_json::{Map, Value};

use crate::messages::{messages, unusable, wrong_type};
use crate::targets::{LabelFields, PairFields, StepFields};
use crate::{DataError, FieldProblem, FileSettings, Location, PromptFormat, RowKind};

type Row = Map<String, Value>;

const PROMPT_NAMES: [&str; 3] = ["prompt", "question", "messages"];
pub(crate) const ANSWER_NAMES: [&str; 2] = ["answer", "solution"];
pub(crate) const DEMONSTRATION_NAMES: [&str; 2] = ["demonstration", "completion"];
/// Field with a text that is learned as a whole.
const TEXT_NAME: &str = "text";
/// Role of the policy's messages.
pub(crate) const ASSISTANT: &str = "assistant";
/// Role of the results of tools.
const TOOL: &str = "tool";

/// The mapping from the fields of a file's rows to tasks.
pub(crate) struct FieldMapping {
    /// Field with the prompt; `None` if what two completions begin with is the prompt.
    prompt: Option<String>,
    /// Setting that names the prompt.
    prompt_setting: &'static str,
    answer: Option<Field>,
    target: Target,
    domain_field: Option<String>,
    domain: String,
    marker: String,
    /// The messages of the assistant carry loss.
    needs_conversation: bool,
    /// Shared by the tasks of rows without other fields.
    no_extra: Arc<Row>,
}

/// What follows the prompt of a row.
enum Target {
    /// A demonstration, which every row must have if it is needed.
    Demonstration {
        field: Option<Field>,
        is_needed: bool,
    },
    /// Nothing: the prompt is a text that is learned as a whole.
    Text,
    Pair(PairFields),
    /// A preference pair whose completions are labelled ones.
    Unpaired(PairFields),
    Label(LabelFields),
    Steps(StepFields),
}

/// A field that a row may have.
pub(crate) struct Field {
    pub(crate) name: String,
    /// Named in the settings, so that an unusable value is an error. In a field that was only detected it is not: nothing
    /// may read it.
    is_named: bool,
}

impl Field {
    pub(crate) fn find(named: Option<&String>, first: &Row, names: &[&str]) -> Option<Self> {
        match named {
            Some(name) => Some(Self { name: name.clone(), is_named: true }),
            None => first_present(first, names).map(|name| Self { name, is_named: false }),
        }
    }

    /// The value of a row, unless it is null.
    pub(crate) fn of<'a>(&self, row: &'a Row) -> Option<&'a Value> {
        row.get(&self.name).filter(|v| !v.is_null())
    }

    /// The result if the value is usable; `None` for an unusable value of a detected field.
    pub(crate) fn usable<T>(&self, result: Result<T, DataError>) -> Result<Option<T>, DataError> {
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
        kind: RowKind,
    ) -> Result<Self, DataError> {
        let named_prompt = settings.prompt_field.as_ref().or(settings.messages_field.as_ref()).cloned();
        let prompt = named_prompt.or_else(|| first_present(first, &PROMPT_NAMES));
        let text = match (&settings.text_field, kind) {
            (Some(name), RowKind::Demonstrations) => Some(name.clone()),
            (None, RowKind::Demonstrations) if prompt.is_none() => first_present(first, &[TEXT_NAME]),
            _ => None,
        };
        let (prompt, prompt_setting, target) = match (text, kind) {
            (Some(text), _) => (Some(text), "text_field", Target::Text),
            (None, RowKind::Pairs) => {
                (prompt, "prompt_field", Target::Pair(PairFields::detect(settings, first)))
            }
            (None, RowKind::Labels) if LabelFields::are_unpaired(settings, first) => {
                (prompt, "prompt_field", Target::Unpaired(PairFields::detect(settings, first)))
            }
            (None, kind) => {
                let missing = || Self::no_prompt(first, at, kind);
                let target = Target::detect(settings, first, kind);
                (Some(prompt.ok_or_else(missing)?), "prompt_field", target)
            }
        };
        let mapping = Self {
            prompt,
            prompt_setting: if settings.messages_field.is_some() { "messages_field" } else { prompt_setting },
            answer: Field::find(settings.answer_field.as_ref(), first, &ANSWER_NAMES),
            target,
            domain_field: settings.domain_field.clone(),
            domain: settings.domain.clone(),
            marker: settings.answer_marker.clone(),
            needs_conversation: kind == RowKind::Demonstrations
                && settings.loss_on == Some(LossOn::Assistant),
            no_extra: Arc::default(),
        };
        mapping.check_kind(settings, first, at, kind)?;
        Ok(mapping)
    }

    fn no_prompt(first: &Row, at: &Location, kind: RowKind) -> DataError {
        match RowKind::of_row(first).filter(|found| kind.is_offline() && *found != kind) {
            Some(found) => DataError::OtherKind { at: at.clone(), wanted: kind, found },
            None => missing(at, &PROMPT_NAMES, first, "prompt_field"),
        }
    }

    /// Refuses the rows of a file that are evidently for methods of another kind.
    fn check_kind(
        &self,
        settings: &FileSettings,
        first: &Row,
        at: &Location,
        kind: RowKind,
    ) -> Result<(), DataError> {
        let has = |name: &str| first.get(name).is_some_and(|value| !value.is_null());
        let has_target = match &self.target {
            Target::Demonstration { field, is_needed } => {
                !is_needed || field.is_some() || settings.demonstration_field.is_some()
            }
            Target::Text | Target::Unpaired(_) => true,
            Target::Pair(fields) => fields.names().take(2).all(has),
            Target::Label(fields) => fields.names().all(has),
            Target::Steps(fields) => fields.names().all(has),
        };
        match RowKind::of_row(first) {
            Some(found) if !has_target && found != kind => {
                Err(DataError::OtherKind { at: at.clone(), wanted: kind, found })
            }
            _ => Ok(()),
        }
    }

    fn prompt_name(&self) -> &str {
        self.prompt.as_deref().unwrap_or(PROMPT_NAMES[0])
    }

    /// True if the rows are texts that are learned as a whole.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.target, Target::Text)
    }

    /// Converts a row to its task, or to the two tasks of a pair whose completions are labelled ones. Fields that the mapping does
    /// not read become the tasks' `extra`.
    pub(crate) fn tasks(
        &self,
        index: u64,
        row: Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<Vec<Task>, DataError> {
        let task = self.task(index, row, at, format)?;
        let Target::Unpaired(_) = self.target else { return Ok(vec![task]) };
        let labelled = task.demonstration.iter().filter_map(Demonstration::unpaired).flatten();
        let tasks = (index..)
            .zip(labelled)
            .map(|(index, labelled)| Task { index, ..task.with_demonstration(&labelled) });
        Ok(tasks.collect())
    }

    fn task(
        &self,
        index: u64,
        mut row: Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<Task, DataError> {
        let mut read: Vec<String> = self.prompt.iter().cloned().collect();
        let (prompt, mut demonstration) = self.content(&row, at, format, &mut read)?;
        if self.needs_conversation && matches!(prompt, PromptSource::Text(_)) {
            return Err(unusable(at, self.prompt_name(), FieldProblem::NotAConversation));
        }
        let mut answer = String::new();
        if let Some(field) = &self.answer
            && let Some(value) = field.of(&row)
            && let Some(found) = field.usable(self.answer(value, &field.name, at))?
        {
            answer = found.answer;
            demonstration = demonstration.or(found.solution.map(Demonstration::from));
            read.push(field.name.clone());
        }
        if let Target::Demonstration { field, is_needed } = &self.target {
            if let Some(field) = field
                && let Some(value) = field.of(&row)
            {
                let found = completion(value, &field.name, at, &prompt);
                let found = if *is_needed { found.map(Some) } else { field.usable(found) };
                if let Some(found) = found? {
                    demonstration = Some(found);
                    read.push(field.name.clone());
                }
            }
            if *is_needed && demonstration.is_none() {
                let detected = field.as_ref().map(|field| [field.name.as_str()]);
                let wanted = detected.as_ref().map_or(&DEMONSTRATION_NAMES[..], |name| &name[..]);
                return Err(missing(at, wanted, &row, "demonstration_field"));
            }
        }
        let domain = match &self.domain_field {
            Some(field) => {
                read.push(field.clone());
                scalar(required(&row, field, at, "domain_field")?, field, at)?
            }
            None => self.domain.clone(),
        };
        for field in read {
            row.shift_remove(&field);
        }
        let extra = if row.is_empty() { Arc::clone(&self.no_extra) } else { Arc::new(row) };
        Ok(Task { index, prompt, answer, demonstration, domain, extra })
    }

    /// Prompt and target of a row, but for the demonstration that may be in a field of its own.
    fn content(
        &self,
        row: &Row,
        at: &Location,
        format: &PromptFormat,
        read: &mut Vec<String>,
    ) -> Result<(PromptSource, Option<Demonstration>), DataError> {
        match &self.target {
            Target::Demonstration { .. } => self.prompt(row, at, format),
            Target::Text => self.text(row, at, format),
            Target::Pair(fields) | Target::Unpaired(fields) => {
                read.extend(fields.names().map(str::to_owned));
                let prompt = match &self.prompt {
                    Some(prompt) if !fields.repeat_prompt(row, prompt) => {
                        Some(self.whole_prompt(row, at, format)?)
                    }
                    _ => None,
                };
                let (prompt, pair) = fields.read(row, at, prompt, format)?;
                Ok((prompt, Some(pair)))
            }
            Target::Label(fields) => {
                read.extend(fields.names().map(str::to_owned));
                let prompt = self.whole_prompt(row, at, format)?;
                let labelled = fields.read(row, at, &prompt)?;
                Ok((prompt, Some(labelled)))
            }
            Target::Steps(fields) => {
                read.extend(fields.names().map(str::to_owned));
                Ok((self.whole_prompt(row, at, format)?, Some(fields.read(row, at)?)))
            }
        }
    }

    /// A text that is learned as a whole: the prompt, which nothing follows.
    fn text(
        &self,
        row: &Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<(PromptSource, Option<Demonstration>), DataError> {
        let field = self.prompt_name();
        match required(row, field, at, self.prompt_setting)? {
            Value::String(_) if format.template.is_some() || format.is_conversation() => {
                Err(unusable(at, field, FieldProblem::FormatForText))
            }
            Value::String(text) => Ok((PromptSource::Text(text.clone()), Some("".into()))),
            other => Err(wrong_type(at, field, "text", other)),
        }
    }

    /// The prompt of a row whose completions are in other fields.
    fn whole_prompt(
        &self,
        row: &Row,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<PromptSource, DataError> {
        match self.prompt(row, at, format)? {
            (prompt, None) => Ok(prompt),
            (_, Some(_)) => Err(unusable(at, self.prompt_name(), FieldProblem::AnsweredPrompt)),
        }
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
        let field = self.prompt_name();
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

impl Target {
    /// The target of rows that have a prompt.
    fn detect(settings: &FileSettings, first: &Row, kind: RowKind) -> Self {
        match kind {
            RowKind::Labels => Self::Label(LabelFields::detect(settings, first)),
            RowKind::Steps => Self::Steps(StepFields::detect(settings, first)),
            RowKind::Prompts | RowKind::Demonstrations | RowKind::Pairs => Self::Demonstration {
                field: Field::find(settings.demonstration_field.as_ref(), first, &DEMONSTRATION_NAMES),
                is_needed: kind == RowKind::Demonstrations,
            },
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
pub(crate) fn required<'a>(
    row: &'a Row,
    field: &str,
    at: &Location,
    setting: &'static str,
) -> Result<&'a Value, DataError> {
    row.get(field).filter(|v| !v.is_null()).ok_or_else(|| missing(at, &[field], row, setting))
}

pub(crate) fn first_present(row: &Row, names: &[&str]) -> Option<String> {
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
pub(crate) fn demonstration_start(messages: &[ChatMessage]) -> usize {
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
pub(crate) fn completion(
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
    completion_of_messages(messages(list, field, at)?, field, at, prompt)
}

/// A demonstration that consists of messages of the assistant with results of tools between them.
pub(crate) fn completion_of_messages(
    messages: Vec<ChatMessage>,
    field: &str,
    at: &Location,
    prompt: &PromptSource,
) -> Result<Demonstration, DataError> {
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
