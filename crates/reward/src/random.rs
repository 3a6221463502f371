use rloom_core::{Purpose, RandomKey};
use serde::{Deserialize, Serialize};

use crate::{Completion, JudgeError, Reward, Verdict};

/// A coin toss, whatever the completion says: for control runs, in which nothing may be learned.
///
/// The toss is a function of (seed, stage, ticket, sample, segment), so a control run repeats like any other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Random {
    /// How often it gives 1 rather than 0.
    pub probability: f64,
}

impl Default for Random {
    fn default() -> Self {
        Self { probability: 0.5 }
    }
}

impl Reward for Random {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let key =
            RandomKey::of_sample(completion.seed, completion.stage, Purpose::RandomReward, completion.key);
        Ok(Verdict::value(f64::from(u8::from(key.stream().uniform(0) < self.probability))))
    }

    fn validate(&self) -> Result<(), String> {
        if (0.0..=1.0).contains(&self.probability) {
            Ok(())
        } else {
            Err(format!("`probability`: {} is not between 0 and 1", self.probability))
        }
    }
}
