use std::fmt;

use rloom_core::Demonstration;
use serde_json::{Map, Value};

/// What a stage reads from the rows of its data; its method decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// Prompts, usually with a reference answer: the policy is sampled.
    Prompts,
    /// Prompts with demonstrations, or texts that are learned as a whole.
    Demonstrations,
    /// Preference pairs: a chosen and a rejected completion.
    Pairs,
    /// Completions with a label: desirable or not.
    Labels,
    /// Completions in steps, each with a label.
    Steps,
}

impl RowKind {
    /// True if a stage learns from the rows alone, without sampling.
    pub fn is_offline(self) -> bool {
        self != Self::Prompts
    }

    /// The kind of a demonstration.
    pub(crate) fn of_demonstration(demonstration: &Demonstration) -> Self {
        match demonstration {
            Demonstration::Preference(_) => Self::Pairs,
            Demonstration::Labelled(_) => Self::Labels,
            Demonstration::Steps(_) => Self::Steps,
            Demonstration::Completion(_)
            | Demonstration::Turns(_)
            | Demonstration::Message(_)
            | Demonstration::Conversation(_) => Self::Demonstrations,
        }
    }

    /// The kind that the usual names of fields tell, if it is one with fields that no other has.
    pub(crate) fn of_row(row: &Map<String, Value>) -> Option<Self> {
        let has = |name: &str| row.get(name).is_some_and(|value| !value.is_null());
        let is_list = |name: &str| row.get(name).is_some_and(Value::is_array);
        if has("chosen") && has("rejected") {
            Some(Self::Pairs)
        } else if is_list("completions") && is_list("labels") {
            Some(Self::Steps)
        } else if has("completion") && row.get("label").is_some_and(Value::is_boolean) {
            Some(Self::Labels)
        } else {
            None
        }
    }
}

/// The plural for messages.
impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prompts => "prompts",
            Self::Demonstrations => "demonstrations",
            Self::Pairs => "preference pairs",
            Self::Labels => "completions with a label",
            Self::Steps => "steps with labels",
        })
    }
}
