use rloom_core::ValueRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::math;
use crate::verifier::{Truncated, reference, unreadable};
use crate::{Assessment, Completion, ComponentError, JudgeError, ReferenceForm, Reward};

/// Verifies an expression that must use each of the given numbers once and evaluate to the target.
///
/// The reference answer defines numbers and target: an expression that solves the task (`(8-3)*7`), or `3, 7, 8 = 35`.
/// Any expression of `+ - * / ( )` with the same numbers and the same value is accepted; values are computed exactly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Countdown {
    /// Places to look for the expression, in order of preference.
    pub extract: Vec<Extract>,
    /// Reward of an expression that uses the right numbers and misses the target; at least 0 and below 1.
    pub partial: f64,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

impl Default for Countdown {
    fn default() -> Self {
        Self {
            extract: vec![
                Extract::AnswerTag,
                Extract::Boxed,
                Extract::Hashes,
                Extract::AnswerIs,
                Extract::Whole,
            ],
            partial: 0.0,
            truncated: Truncated::Judge,
        }
    }
}

impl Reward for Countdown {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let answer = reference(completion)?;
        let (target, numbers) =
            task(answer).ok_or_else(|| unreadable(completion, ReferenceForm::Countdown))?;
        let attempt = extract::read_first(&self.extract, completion.text, attempt);
        let verdict = match attempt {
            None => Assessment::outcome(false, false),
            Some((value, mut used)) => {
                used.sort_unstable();
                let solved = used == numbers && value.as_ref() == Some(&target);
                let mut verdict = Assessment::outcome(solved, true);
                if !solved && used == numbers && value.is_some() {
                    verdict.value = Some(self.partial);
                }
                verdict
            }
        };
        Ok(self.truncated.apply(completion, verdict))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn reads_answer(&self) -> bool {
        true
    }

    fn reference(&self, answer: &str) -> Option<String> {
        extract::write_first(&self.extract, answer)
    }

    fn validate(&self) -> Result<(), ComponentError> {
        ValueRange::from_below(0.0, 1.0).check("partial", self.partial)?;
        Ok(extract::validate(&self.extract)?)
    }
}

/// Target and numbers in ascending order.
fn task(answer: &str) -> Option<(math::Exact, Vec<u64>)> {
    let (target, mut numbers) = if let Some((numbers, target)) = answer.split_once('=') {
        let separators = |c: char| c == ',' || c.is_whitespace();
        let words = numbers.split(separators).filter(|w| !w.is_empty());
        let numbers = words.map(|w| w.parse().ok()).collect::<Option<Vec<u64>>>()?;
        (math::countdown(target)?.0?, numbers)
    } else {
        let (value, numbers) = math::countdown(answer)?;
        (value?, numbers)
    };
    numbers.sort_unstable();
    (!numbers.is_empty()).then_some((target, numbers))
}

/// The value and the numbers of a policy's expression. A claimed value (`= 35`) is ignored.
fn attempt(text: &str) -> Option<(Option<math::Exact>, Vec<u64>)> {
    let expression = text.split_once('=').map_or(text, |(left, _)| left);
    math::countdown(expression)
}
