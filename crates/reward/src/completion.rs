use std::fmt::Debug;

use rloom_core::{SampleKey, StopReason, Task};

use crate::{ComponentError, JudgeError};

/// A completion to judge, with its context.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// The task, with the reference answer and the other fields of its row (`extra`).
    pub task: &'a Task,
    /// Text of the policy tokens, without special tokens.
    pub text: &'a str,
    /// Number of policy tokens, including the stop token.
    pub tokens: usize,
    /// Step rewards of the turns; empty if the environment gives none.
    pub steps: &'a [f64],
    /// Reason for the end of generation.
    pub stop: StopReason,
    /// Key within the stage.
    pub key: SampleKey,
    /// Seed of the run.
    pub seed: u64,
    /// Index of the stage in the recipe.
    pub stage: u32,
}

/// The verdict of a reward.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Verdict {
    /// The value; `None` if the reward does not apply to this completion.
    pub value: Option<f64>,
    /// True if the task is solved; verifiers only.
    pub solved: Option<bool>,
    /// True if an answer was extracted; verifiers only.
    pub parsed: Option<bool>,
}

impl Verdict {
    /// A value without an outcome.
    pub fn value(value: f64) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    /// The verdict of a reward that does not apply.
    pub fn not_applicable() -> Self {
        Self::default()
    }

    /// The verdict of a verifier: 1 if solved, else 0.
    pub fn outcome(solved: bool, parsed: bool) -> Self {
        Self { value: Some(f64::from(u8::from(solved))), solved: Some(solved), parsed: Some(parsed) }
    }
}

/// A component that judges completions. Implementations are immutable: equal completions have equal verdicts on any
/// thread.
pub trait Reward: Debug + Send + Sync {
    /// Judges one completion.
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError>;

    /// True if verdicts include the outcome.
    fn is_verifier(&self) -> bool {
        false
    }

    /// True if it reads the task's reference answer. A run checks before it starts that every task has one.
    fn reads_answer(&self) -> bool {
        false
    }

    /// Checks the settings.
    fn validate(&self) -> Result<(), ComponentError> {
        Ok(())
    }
}
