use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Completion, JudgeError, Reward};

/// The sum of the environment's step rewards.
///
/// The episode is solved if its last step reward is at least 1, which environments give for success only. An episode that
/// was aborted before its first token has the reward 0; other episodes without step rewards are errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentReward {}

impl Reward for EnvironmentReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        // A completion that was aborted before its first token has no turn.
        let last = match completion.steps.last() {
            Some(&last) => last,
            None if completion.tokens == 0 => 0.0,
            None => return Err(JudgeError::NoSteps),
        };
        Ok(Assessment { value: Some(completion.steps.iter().sum()), solved: Some(last >= 1.0), parsed: None })
    }

    fn is_verifier(&self) -> bool {
        true
    }
}
