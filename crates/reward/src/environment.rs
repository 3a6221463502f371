use serde::{Deserialize, Serialize};

use crate::{Completion, JudgeError, Reward, Verdict};

/// What the environment rewarded the episode's turns with, added up.
///
/// The episode is solved when its last turn earned 1 or more: environments that can tell success reward it so, and
/// nothing else as much. An episode that was aborted before its first token earns 0; any other without rewarded turns
/// is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentReward {}

impl Reward for EnvironmentReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        // A completion that was aborted before its first token has no turn that could have been rewarded.
        let last = match completion.steps.last() {
            Some(&last) => last,
            None if completion.tokens == 0 => 0.0,
            None => return Err(JudgeError::NoSteps),
        };
        Ok(Verdict { value: Some(completion.steps.iter().sum()), solved: Some(last >= 1.0), parsed: None })
    }

    fn is_verifier(&self) -> bool {
        true
    }
}
