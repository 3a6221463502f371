use rloom_core::ValueRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// 1 for a completion of `min_tokens` to `max_tokens` tokens, falling linearly to 0 over `fade` tokens on either side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Shortest completion with the full reward, in tokens.
    #[serde(default)]
    pub min_tokens: usize,
    /// Longest completion with the full reward, in tokens; at least 1.
    pub max_tokens: usize,
    /// Number of tokens over which the reward falls to 0 on either side. 0: the reward drops to 0 at once.
    #[serde(default)]
    pub fade: usize,
}

impl Reward for Length {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let length = completion.tokens;
        let outside = self.min_tokens.saturating_sub(length).max(length.saturating_sub(self.max_tokens));
        // The reward is below 1 from the first token outside, and above 0 up to the last token of the fade.
        Ok(Assessment::value((1.0 - outside as f64 / (self.fade + 1) as f64).max(0.0)))
    }

    fn validate(&self) -> Result<(), ComponentError> {
        let min = self.min_tokens.max(1);
        Ok(ValueRange::at_least(min as f64).check("max_tokens", self.max_tokens as f64)?)
    }
}
