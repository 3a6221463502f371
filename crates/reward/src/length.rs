use serde::{Deserialize, Serialize};

use crate::{Completion, JudgeError, Reward, Verdict};

/// 1 for a completion of `min_tokens` to `max_tokens` tokens, falling linearly to 0 over `fade` tokens on
/// either side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// The shortest completion with the full reward.
    #[serde(default)]
    pub min_tokens: usize,
    /// The longest completion with the full reward.
    pub max_tokens: usize,
    /// Over how many tokens the reward fades; 0 for a sharp edge.
    #[serde(default)]
    pub fade: usize,
}

impl Reward for Length {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let length = completion.tokens;
        let outside = self.min_tokens.saturating_sub(length).max(length.saturating_sub(self.max_tokens));
        // The first token outside is already less than full, and the last of the fade is still more than
        // nothing.
        Ok(Verdict::value((1.0 - outside as f64 / (self.fade + 1) as f64).max(0.0)))
    }

    fn validate(&self) -> Result<(), String> {
        if self.max_tokens < self.min_tokens.max(1) {
            let problem =
                format!("{} is less than `min_tokens` = {}", self.max_tokens, self.min_tokens.max(1));
            return Err(format!("`max_tokens`: {problem}"));
        }
        Ok(())
    }
}
