use std::fmt::Debug;

use rloom_core::{SampleKey, StopReason, Task};

use crate::JudgeError;

/// What a reward sees.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// What was to be done.
    pub task: &'a Task,
    /// What the policy wrote, without special tokens.
    pub text: &'a str,
    /// How many tokens it wrote, the one that ended it included.
    pub tokens: usize,
    /// What the environment rewarded each of its turns with; empty where it rewards none.
    pub steps: &'a [f64],
    /// Why it ended.
    pub stop: StopReason,
    /// Its name in the stage.
    pub key: SampleKey,
    /// The run's seed.
    pub seed: u64,
    /// The stage's place in the recipe.
    pub stage: u32,
}

/// What a reward says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Verdict {
    /// The value; `None` where the reward does not apply to this completion.
    pub value: Option<f64>,
    /// Whether the task was solved; verifiers only.
    pub solved: Option<bool>,
    /// Whether an answer could be read; verifiers only.
    pub parsed: Option<bool>,
}

impl Verdict {
    /// A value that says nothing about the outcome.
    pub fn value(value: f64) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    /// The reward does not apply.
    pub fn not_applicable() -> Self {
        Self::default()
    }

    /// A verifier's: 1 for solved, 0 otherwise.
    pub fn outcome(solved: bool, parsed: bool) -> Self {
        Self { value: Some(f64::from(u8::from(solved))), solved: Some(solved), parsed: Some(parsed) }
    }
}

/// Something that judges completions. It holds its settings and nothing that changes: the same completion
/// gets the same verdict, from any thread.
pub trait Reward: Debug + Send + Sync {
    /// Judges one completion.
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError>;

    /// Whether its verdicts say if the task was solved.
    fn is_verifier(&self) -> bool {
        false
    }

    /// Checks its settings against each other; the message begins with the key.
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}
