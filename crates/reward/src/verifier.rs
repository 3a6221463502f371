use serde::{Deserialize, Serialize};

use crate::{Completion, JudgeError, Verdict};

/// What a verifier makes of a completion that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncated {
    /// It is judged by what is there.
    #[default]
    Judge,
    /// It is not solved, whatever it says.
    Fail,
}

impl Truncated {
    /// Applies the choice to a verdict.
    pub(crate) fn apply(self, completion: &Completion<'_>, verdict: Verdict) -> Verdict {
        match self {
            Self::Fail if completion.stop.is_truncated() => {
                Verdict::outcome(false, verdict.parsed.unwrap_or(false))
            }
            _ => verdict,
        }
    }
}

/// The reference answer, which verifiers cannot do without.
pub(crate) fn reference<'a>(completion: &Completion<'a>) -> Result<&'a str, JudgeError> {
    let answer = completion.task.answer.trim();
    if answer.is_empty() { Err(JudgeError::NoReference { task: completion.task.index }) } else { Ok(answer) }
}

/// A reference answer that a verifier cannot read.
pub(crate) fn unreadable(completion: &Completion<'_>, problem: &str) -> JudgeError {
    JudgeError::Reference {
        task: completion.task.index,
        answer: completion.task.answer.clone(),
        problem: problem.to_owned(),
    }
}
