use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The verdict of a reward component on an episode.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// A value, before weighting.
    Value(f64),
    /// The component says nothing about this episode.
    NotApplicable,
    /// The component could not judge the episode. That is never a value, in particular not 0.
    Failed(Failure),
}

/// Why a component could not judge an episode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What failed.
    pub kind: FailureKind,
    /// Another attempt might have succeeded; those that the recipe permits were made.
    pub retryable: bool,
    /// Message of the last attempt.
    pub message: String,
}

/// What failed when a component could not judge an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// What the component needs: a process that ended, a server without an answer, a sandbox, a timeout.
    Infrastructure,
    /// The task: a row without what the component reads, such as a reference answer in the required form.
    Task,
    /// The component: an exception, a panic, an answer that is not a verdict.
    Component,
}

impl FailureKind {
    /// All kinds, in order.
    pub const ALL: [Self; 3] = [Self::Infrastructure, Self::Task, Self::Component];

    /// Name in records, metrics and the protocol of functions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Task => "task",
            Self::Component => "component",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Verdict {
    /// The verdict of a component that judged: a value, or that it does not apply.
    pub fn of(value: Option<f64>) -> Self {
        value.map_or(Self::NotApplicable, Self::Value)
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(*value),
            Self::NotApplicable | Self::Failed(_) => None,
        }
    }

    /// The failure, if the component failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::Value(_) | Self::NotApplicable => None,
        }
    }
}
