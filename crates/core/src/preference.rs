//! What offline methods learn from besides plain demonstrations, and which tokens carry loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Demonstration;

/// Name of the reward component that records a preference or a label: 1 for the chosen or desirable completion, 0 for the
/// other.
pub const PREFERENCE: &str = "preference";
/// Name of the number in [`Rewards::metrics`](crate::Rewards::metrics) of the chosen episode that records the margin of a
/// preference.
pub const MARGIN: &str = "margin";

/// Two completions of a prompt, of which one is preferred.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preference {
    /// The preferred completion.
    pub chosen: Demonstration,
    /// The other completion.
    pub rejected: Demonstration,
    /// By how much the chosen completion is better, if the data says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
}

/// A completion with a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelledCompletion {
    /// The completion.
    pub completion: Demonstration,
    /// True if the completion is desirable.
    pub label: bool,
}

/// A completion in steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelledSteps {
    /// The steps, at least one.
    pub steps: Vec<LabelledStep>,
    /// Text after each step.
    pub separator: String,
}

/// A step of a completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelledStep {
    /// Text of the step.
    pub text: String,
    /// True if the step is correct.
    pub label: bool,
}

/// The tokens of a row that carry loss in supervised training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// The completion: the demonstration that follows the prompt.
    #[default]
    Completion,
    /// All messages of the assistant in a conversation, those of the prompt included.
    Assistant,
    /// Everything but the first token, which has no prefix to be predicted from.
    All,
}
