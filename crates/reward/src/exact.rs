use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::verifier::{Truncated, reference};
use crate::{Completion, JudgeError, Reward, Verdict};

/// The answer, character by character; white space around it does not count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exact {
    /// Where the answer is looked for, in this order ([`Extract`] says which place decides).
    pub extract: Vec<Extract>,
    /// Whether upper and lower case are the same.
    pub ignore_case: bool,
    /// What is made of a completion that was cut off.
    pub truncated: Truncated,
}

impl Default for Exact {
    fn default() -> Self {
        Self { extract: vec![Extract::Whole], ignore_case: false, truncated: Truncated::Judge }
    }
}

impl Reward for Exact {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let expected = reference(completion)?;
        let found = extract::decide(&self.extract, completion.text, Some);
        let verdict = match found {
            Some(answer) if self.ignore_case => {
                Verdict::outcome(answer.to_lowercase() == expected.to_lowercase(), true)
            }
            Some(answer) => Verdict::outcome(answer == expected, true),
            None => Verdict::outcome(false, false),
        };
        Ok(self.truncated.apply(completion, verdict))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), String> {
        extract::validate(&self.extract)
    }
}
