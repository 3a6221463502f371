use rloom_core::{Purpose, RandomKey, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// A random reward, independent of the completion: for control runs, in which nothing can be learned.
///
/// It is a function of (seed, stage, ticket, sample, segment), so control runs are reproducible.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Random {
    /// Probability of the reward 1 instead of 0, between 0 and 1.
    pub probability: f64,
}

impl Default for Random {
    fn default() -> Self {
        Self { probability: 0.5 }
    }
}

impl Reward for Random {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let key =
            RandomKey::for_sample(completion.seed, completion.stage, Purpose::RandomReward, completion.key);
        Ok(Assessment::value(f64::from(u8::from(key.stream().uniform(0) < self.probability))))
    }

    fn validate(&self) -> Result<(), ComponentError> {
        Ok(ValueRange::between(0.0, 1.0).check("probability", self.probability)?)
    }
}
