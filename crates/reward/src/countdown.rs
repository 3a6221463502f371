use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::math;
use crate::verifier::{Truncated, reference, unreadable};
use crate::{Completion, JudgeError, Reward, Verdict};

/// An expression that uses given numbers, each exactly once, and gives a target.
///
/// The reference answer says numbers and target: as an expression that solves the task (`(8-3)*7`), or as `3,
/// 7, 8 = 35`. Any expression of `+ - * / ( )` is accepted that uses the same numbers and has the same value;
/// it is computed exactly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Countdown {
    /// Where the expression is looked for, in this order ([`Extract`] says which place decides).
    pub extract: Vec<Extract>,
    /// The value of an expression of the right numbers that misses the target.
    pub partial: f64,
    /// What is made of a completion that was cut off.
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
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let answer = reference(completion)?;
        let problem = "is neither an expression of numbers nor `numbers = target`";
        let (target, numbers) = task(answer).ok_or_else(|| unreadable(completion, problem))?;
        let attempt = extract::decide(&self.extract, completion.text, attempt);
        let verdict = match attempt {
            None => Verdict::outcome(false, false),
            Some((value, mut used)) => {
                used.sort_unstable();
                let solved = used == numbers && value.as_ref() == Some(&target);
                let mut verdict = Verdict::outcome(solved, true);
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

    fn validate(&self) -> Result<(), String> {
        if !(0.0..1.0).contains(&self.partial) {
            return Err(format!("`partial`: {} is not at least 0 and below 1", self.partial));
        }
        extract::validate(&self.extract)
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

/// A policy's expression. What it claims it to be (`= 35`) is not looked at: the value is computed.
fn attempt(text: &str) -> Option<(Option<math::Exact>, Vec<u64>)> {
    let expression = text.split_once('=').map_or(text, |(left, _)| left);
    math::countdown(expression)
}
