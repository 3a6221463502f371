use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Completion, JudgeError, ReferenceForm};

/// Treatment of truncated completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncated {
    /// Judge the truncated text.
    #[default]
    Judge,
    /// Count as not solved, regardless of the text.
    Fail,
}

impl Truncated {
    /// Applies the setting to a verdict.
    pub(crate) fn apply(self, completion: &Completion<'_>, verdict: Assessment) -> Assessment {
        match self {
            Self::Fail if completion.stop.is_truncated() => {
                Assessment::outcome(false, verdict.parsed.unwrap_or(false))
            }
            _ => verdict,
        }
    }
}

/// The reference answer, which verifiers require.
pub(crate) fn reference<'a>(completion: &Completion<'a>) -> Result<&'a str, JudgeError> {
    let answer = completion.task.answer.trim();
    if answer.is_empty() { Err(JudgeError::NoReference { task: completion.task.index }) } else { Ok(answer) }
}

/// The error for a reference answer that a verifier cannot read.
pub(crate) fn unreadable(completion: &Completion<'_>, expected: ReferenceForm) -> JudgeError {
    JudgeError::Reference { task: completion.task.index, answer: completion.task.answer.clone(), expected }
}
