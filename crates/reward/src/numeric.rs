use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::math::{Reference, judge_first, validate_tolerance, verdict};
use crate::verifier::{Truncated, reference, unreadable};
use crate::{Assessment, Completion, ComponentError, JudgeError, ReferenceForm, Reward};

/// Verifies a number: `18`, `$1,800.00`, `7/2`, `1 1/2`, `-3.5e2`, `18 eggs`. Numbers are compared exactly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Numeric {
    /// Places to look for the number, in order of preference.
    pub extract: Vec<Extract>,
    /// Maximum relative difference of the numbers, at least 0 and below 1. 0: the numbers must be equal.
    pub tolerance: f64,
    /// Treatment of truncated completions.
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
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let reference = Reference::read(reference(completion)?);
        if !reference.is_number() {
            return Err(unreadable(completion, ReferenceForm::Number));
        }
        let judge = |answer: &str| reference.judge_number(answer, self.tolerance);
        let judgement = judge_first(&self.extract, completion.text, judge);
        Ok(self.truncated.apply(completion, verdict(judgement)))
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
        extract::validate(&self.extract)?;
        Ok(validate_tolerance(self.tolerance)?)
    }
}
