//! The fields of preference pairs, labelled completions and labelled steps.

use rloom_core::{Demonstration, LabelledCompletion, LabelledStep, LabelledSteps, Preference, PromptSource};
use serde_json::{Map, Value};

use crate::messages::{messages, unusable, wrong_type};
use crate::record::{
    ASSISTANT, DEMONSTRATION_NAMES, Field, completion, completion_of_messages, demonstration_start,
    first_present, required,
};
use crate::{DataError, FieldProblem, FileSettings, Location, PromptFormat};

type Row = Map<String, Value>;

/// The field that the settings name, or that has one of the usual names.
fn name(setting: Option<&String>, first: &Row, usual: &[&str]) -> String {
    let found = || first_present(first, usual).unwrap_or_else(|| usual[0].to_owned());
    setting.cloned().unwrap_or_else(found)
}

/// The fields of a preference pair.
pub(crate) struct PairFields {
    chosen: String,
    rejected: String,
    margin: Option<Field>,
}

impl PairFields {
    pub(crate) fn detect(settings: &FileSettings, first: &Row) -> Self {
        Self {
            chosen: name(settings.chosen_field.as_ref(), first, &["chosen"]),
            rejected: name(settings.rejected_field.as_ref(), first, &["rejected"]),
            margin: Field::find(settings.margin_field.as_ref(), first, &["margin"]),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let margin = self.margin.as_ref().map(|field| field.name.as_str());
        [self.chosen.as_str(), &self.rejected].into_iter().chain(margin)
    }

    /// True if the prompt is plain text that the conversations of the pair repeat as their first messages.
    pub(crate) fn repeat_prompt(&self, row: &Row, prompt: &str) -> bool {
        let role = |field: &str| row.get(field)?.get(0)?.get("role")?.as_str();
        let is_whole = |field: &String| role(field).is_some_and(|role| role != ASSISTANT);
        row.get(prompt).is_some_and(Value::is_string)
            && [&self.chosen, &self.rejected].into_iter().all(is_whole)
    }

    /// The pair of a row. A row without a prompt has one in what both completions begin with.
    pub(crate) fn read(
        &self,
        row: &Row,
        at: &Location,
        prompt: Option<PromptSource>,
        format: &PromptFormat,
    ) -> Result<(PromptSource, Demonstration), DataError> {
        let chosen = required(row, &self.chosen, at, "chosen_field")?;
        let rejected = required(row, &self.rejected, at, "rejected_field")?;
        let margin = self.margin.as_ref().and_then(|field| Some((field, field.of(row)?)));
        let margin = margin.map(|(field, value)| field.usable(number(value, &field.name, at)));
        let margin = margin.transpose()?.flatten();
        let (prompt, chosen, rejected) = match (prompt, chosen, rejected) {
            (Some(prompt), ..) => {
                let chosen = completion(chosen, &self.chosen, at, &prompt)?;
                let rejected = completion(rejected, &self.rejected, at, &prompt)?;
                (prompt, chosen, rejected)
            }
            (None, Value::String(chosen), Value::String(rejected)) => {
                self.of_texts(chosen, rejected, at, format)?
            }
            (None, Value::Array(chosen), Value::Array(rejected)) => {
                self.of_conversations(chosen, rejected, at, format)?
            }
            (None, Value::String(_), other) => {
                return Err(wrong_type(at, &self.rejected, "text, as the chosen completion is", other));
            }
            (None, Value::Array(_), other) => {
                let expected = "a list of messages, as the chosen completion is";
                return Err(wrong_type(at, &self.rejected, expected, other));
            }
            (None, other, _) => {
                return Err(wrong_type(at, &self.chosen, "text or a list of messages", other));
            }
        };
        Ok((prompt, Demonstration::Preference(Box::new(Preference { chosen, rejected, margin }))))
    }

    /// Divides two texts into their common beginning and the two completions.
    fn of_texts(
        &self,
        chosen: &str,
        rejected: &str,
        at: &Location,
        format: &PromptFormat,
    ) -> Result<(PromptSource, Demonstration, Demonstration), DataError> {
        if chosen == rejected {
            return Err(unusable(at, &self.rejected, FieldProblem::SameTexts));
        }
        let prompt = common_prefix(chosen, rejected);
        if prompt == 0 {
            return Err(unusable(at, &self.rejected, FieldProblem::NoCommonPrompt));
        }
        Ok((format.plain(chosen[..prompt].to_owned()), chosen[prompt..].into(), rejected[prompt..].into()))
    }

    /// Divides two conversations into their common messages and the two completions.
    fn of_conversations(
        &self,
        chosen: &[Value],
        rejected: &[Value],
        at: &Location,
        format: &PromptFormat,
    ) -> Result<(PromptSource, Demonstration, Demonstration), DataError> {
        let mut chosen = messages(chosen, &self.chosen, at)?;
        let mut rejected = messages(rejected, &self.rejected, at)?;
        let common = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b).count();
        let prompt = common.min(demonstration_start(&chosen)).min(demonstration_start(&rejected));
        if prompt == 0 {
            return Err(unusable(at, &self.rejected, FieldProblem::NoCommonPrompt));
        }
        if format.template.is_some() {
            return Err(unusable(at, &self.chosen, FieldProblem::TemplateForConversation));
        }
        let (of_chosen, of_rejected) = (chosen.split_off(prompt), rejected.split_off(prompt));
        let prompt = format.conversation(chosen);
        let chosen = completion_of_messages(of_chosen, &self.chosen, at, &prompt)?;
        let rejected = completion_of_messages(of_rejected, &self.rejected, at, &prompt)?;
        Ok((prompt, chosen, rejected))
    }
}

/// Bytes of the text that both begin with, up to the word in which they differ. A space before the difference belongs to the
/// completions, as the tokens of most vocabularies begin with it.
fn common_prefix(a: &str, b: &str) -> usize {
    let common: usize =
        a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(character, _)| character.len_utf8()).sum();
    let continues = |text: &str| text[common..].starts_with(char::is_alphanumeric);
    let word = a[..common].trim_end_matches(char::is_alphanumeric).len();
    let common = if word > 0 && (continues(a) || continues(b)) { word } else { common };
    let before_space = a[..common].strip_suffix(' ').map_or(common, str::len);
    if before_space > 0 { before_space } else { common }
}

/// The fields of a completion with a label.
pub(crate) struct LabelFields {
    completion: String,
    label: String,
}

impl LabelFields {
    pub(crate) fn detect(settings: &FileSettings, first: &Row) -> Self {
        Self {
            completion: name(settings.demonstration_field.as_ref(), first, &DEMONSTRATION_NAMES),
            label: name(settings.label_field.as_ref(), first, &["label"]),
        }
    }

    /// True if the labelled completions are those of preference pairs: rows with a chosen and a rejected completion, and without
    /// a label.
    pub(crate) fn are_unpaired(settings: &FileSettings, first: &Row) -> bool {
        let is_named = settings.label_field.is_some() || settings.demonstration_field.is_some();
        let pair = PairFields::detect(settings, first);
        let has = |name: &str| first.get(name).is_some_and(|value| !value.is_null());
        !is_named && !has("label") && pair.names().take(2).all(has)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [self.completion.as_str(), &self.label].into_iter()
    }

    pub(crate) fn read(
        &self,
        row: &Row,
        at: &Location,
        prompt: &PromptSource,
    ) -> Result<Demonstration, DataError> {
        let value = required(row, &self.completion, at, "demonstration_field")?;
        let completion = completion(value, &self.completion, at, prompt)?;
        let label = label(required(row, &self.label, at, "label_field")?, &self.label, at)?;
        Ok(Demonstration::Labelled(Box::new(LabelledCompletion { completion, label })))
    }
}

/// The fields of a completion in steps.
pub(crate) struct StepFields {
    steps: String,
    labels: String,
    separator: String,
}

impl StepFields {
    pub(crate) fn detect(settings: &FileSettings, first: &Row) -> Self {
        Self {
            steps: name(settings.steps_field.as_ref(), first, &["completions", "steps"]),
            labels: name(settings.step_labels_field.as_ref(), first, &["labels"]),
            separator: settings.step_separator.clone().unwrap_or_else(|| "\n".to_owned()),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [self.steps.as_str(), &self.labels].into_iter()
    }

    pub(crate) fn read(&self, row: &Row, at: &Location) -> Result<Demonstration, DataError> {
        let steps = list(required(row, &self.steps, at, "steps_field")?, &self.steps, at)?;
        let labels = list(required(row, &self.labels, at, "step_labels_field")?, &self.labels, at)?;
        if steps.is_empty() {
            return Err(unusable(at, &self.steps, FieldProblem::NoSteps));
        }
        if steps.len() != labels.len() {
            let problem = FieldProblem::StepLabels { labels: labels.len(), steps: steps.len() };
            return Err(unusable(at, &self.labels, problem));
        }
        let step = |(index, (text, value)): (usize, (&Value, &Value))| {
            let Value::String(text) = text else {
                return Err(wrong_type(at, &format!("{}[{index}]", self.steps), "text", text));
            };
            let label = label(value, &format!("{}[{index}]", self.labels), at)?;
            Ok(LabelledStep { text: text.clone(), label })
        };
        let steps = steps.iter().zip(labels).enumerate().map(step).collect::<Result<_, _>>()?;
        Ok(Demonstration::Steps(LabelledSteps { steps, separator: self.separator.clone() }))
    }
}

fn list<'a>(value: &'a Value, field: &str, at: &Location) -> Result<&'a [Value], DataError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| wrong_type(at, field, "a list", value))
}

fn number(value: &Value, field: &str, at: &Location) -> Result<f64, DataError> {
    value.as_f64().ok_or_else(|| wrong_type(at, field, "a number", value))
}

/// A label: a boolean, or 1 and 0.
fn label(value: &Value, field: &str, at: &Location) -> Result<bool, DataError> {
    match (value.as_bool(), value.as_f64()) {
        (Some(label), _) => Ok(label),
        (None, Some(1.0)) => Ok(true),
        (None, Some(0.0)) => Ok(false),
        (None, Some(_)) => Err(unusable(at, field, FieldProblem::NotALabel { value: value.to_string() })),
        (None, None) => Err(wrong_type(at, field, "true or false", value)),
    }
}
