use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::math::{Reference, decide, validate_tolerance, verdict};
use crate::verifier::{Truncated, reference, unreadable};
use crate::{Completion, JudgeError, Reward, Verdict};

/// The answer as a number: `18`, `$1,800.00`, `7/2`, `1 1/2`, `-3.5e2`, `18 eggs`. Numbers are compared
/// exactly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Numeric {
    /// Where the number is looked for, in this order ([`Extract`] says which place decides).
    pub extract: Vec<Extract>,
    /// The relative difference that the numbers may have. 0 asks for the same number.
    pub tolerance: f64,
    /// What is made of a completion that was cut off.
    pub truncated: Truncated,
}

impl Default for Numeric {
    fn default() -> Self {
        Self {
            extract: vec![
                Extract::Boxed,
                Extract::Hashes,
                Extract::AnswerTag,
                Extract::AnswerIs,
                Extract::LastNumber,
            ],
            tolerance: 0.0,
            truncated: Truncated::Judge,
        }
    }
}

impl Reward for Numeric {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let reference = Reference::read(reference(completion)?);
        if !reference.is_number() {
            return Err(unreadable(
                completion,
                "is not a number\nhint: judge such answers with `math` or `exact`",
            ));
        }
        let judge = |answer: &str| reference.judge_number(answer, self.tolerance);
        let judgement = decide(&self.extract, completion.text, judge);
        Ok(self.truncated.apply(completion, verdict(judgement)))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), String> {
        extract::validate(&self.extract)?;
        validate_tolerance(self.tolerance)
    }
}
