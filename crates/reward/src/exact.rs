use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::verifier::{Truncated, reference};
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// Verifies that the answer equals the reference answer as text, without surrounding white space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Exact {
    /// Places to look for the answer, in order of preference.
    pub extract: Vec<Extract>,
    /// Ignores the difference between upper and lower case.
    pub ignore_case: bool,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

impl Default for Exact {
    fn default() -> Self {
        Self { extract: vec![Extract::Whole], ignore_case: false, truncated: Truncated::Judge }
    }
}

impl Reward for Exact {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let expected = reference(completion)?;
        let found = extract::read_first(&self.extract, completion.text, Some);
        let verdict = match found {
            Some(answer) if self.ignore_case => {
                Assessment::outcome(answer.to_lowercase() == expected.to_lowercase(), true)
            }
            Some(answer) => Assessment::outcome(answer == expected, true),
            None => Assessment::outcome(false, false),
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
        Ok(extract::validate(&self.extract)?)
    }
}
