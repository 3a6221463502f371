use serde::{Deserialize, Serialize};

use crate::{Completion, JudgeError, Reward, Verdict};

/// DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4): 0 up to `max_tokens − buffer` tokens,
/// then falling linearly to `−factor` at `max_tokens` and beyond.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overlong {
    /// The longest completion; the sampling limit when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Over how many tokens the punishment grows; a fifth of the longest completion when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
    /// The full punishment; 1 when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

impl Reward for Overlong {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let limit = self.max_tokens.or(completion.max_tokens).ok_or(JudgeError::NoTokenLimit)?;
        let buffer = self.buffer.unwrap_or(limit / 5).clamp(1, limit.max(1));
        let past = completion.tokens.saturating_sub(limit.saturating_sub(buffer));
        let share = (past as f64 / buffer as f64).min(1.0);
        // Not −0.0, which would show as such in logs.
        Ok(Verdict::value(if past == 0 { 0.0 } else { -share * self.factor.unwrap_or(1.0) }))
    }

    fn validate(&self) -> Result<(), String> {
        if self.max_tokens == Some(0) {
            return Err("`max_tokens`: must be at least 1".into());
        }
        if self.buffer == Some(0) {
            return Err("`buffer`: must be at least 1".into());
        }
        if let (Some(buffer), Some(limit)) = (self.buffer, self.max_tokens)
            && buffer > limit
        {
            return Err(format!("`buffer`: {buffer} is more than `max_tokens` = {limit}"));
        }
        match self.factor {
            Some(factor) if !(factor.is_finite() && factor > 0.0) => {
                Err(format!("`factor`: {factor} is not a positive number"))
            }
            _ => Ok(()),
        }
    }
}

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
