use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use rloom_core::{SampleKey, StopReason, Task};
use rloom_function::Host;

use crate::judge::JudgeModels;
use crate::{ComponentError, JudgeError};

/// A completion to judge, with its context.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// The task, with the reference answer and the other fields of its row (`extra`).
    pub task: &'a Task,
    /// Text of the policy tokens of all segments of the episode, without special tokens.
    pub text: &'a str,
    /// Text after the prompt, without special tokens: that of the policy and the observations between its turns. Empty unless a component reads
    /// it ([`Reward::reads_observations`]).
    pub transcript: &'a str,
    /// Number of policy tokens, including the stop token.
    pub tokens: usize,
    /// The policy tokens.
    pub token_ids: &'a [u32],
    /// The prompt as the model receives it, special tokens included; empty unless a component reads it
    /// ([`Reward::reads_prompt`]).
    pub prompt: &'a str,
    /// Number of training steps of the policy that sampled the first token.
    pub version: u64,
    /// Step rewards of the turns; empty if the environment gives none.
    pub steps: &'a [f64],
    /// Reason for the end of generation.
    pub stop: StopReason,
    /// Key within the stage, of the first segment.
    pub key: SampleKey,
    /// Seed of the run.
    pub seed: u64,
    /// Index of the stage in the recipe.
    pub stage: u32,
}

/// What a reward says about a completion that it can judge.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Assessment {
    /// The value; `None` if the reward does not apply to this completion.
    pub value: Option<f64>,
    /// True if the task is solved; verifiers only.
    pub solved: Option<bool>,
    /// True if an answer was extracted; verifiers only.
    pub parsed: Option<bool>,
}

impl Assessment {
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

/// What an agent of an episode of several has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentText {
    /// Its name.
    pub name: String,
    /// The texts of its turns, each after the number of its round.
    pub text: String,
}

/// A component that judges completions. Implementations are immutable: equal completions have equal verdicts on any
/// thread.
pub trait Reward: Debug + Send + Sync {
    /// Judges one completion.
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError>;

    /// Judges all completions of a group, in order. Called instead of [`judge`](Self::judge) for components that judge
    /// whole groups.
    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        completions.iter().map(|completion| self.judge(completion)).collect()
    }

    /// True if it compares the completions of a group: it judges them together, once all are generated.
    fn judges_groups(&self) -> bool {
        false
    }

    /// True if it judges the agents of an episode of several one by one. It does not apply to other episodes.
    fn judges_agents(&self) -> bool {
        false
    }

    /// Judges the agents of an episode, in order. Called instead of [`judge`](Self::judge) for components that judge agents.
    fn judge_agents(&self, _: &Completion<'_>, _agents: &[AgentText]) -> Result<Vec<f64>, JudgeError> {
        Ok(Vec::new())
    }

    /// True if it reads [`Completion::prompt`].
    fn reads_prompt(&self) -> bool {
        false
    }

    /// True if it judges the whole episode: [`Completion::text`] is then the transcript. Otherwise it is what the policy wrote, so that text of
    /// the environment earns no reward.
    fn reads_observations(&self) -> bool {
        false
    }

    /// Number of completions that it judges at a time without using a thread's time, such as by asking other processes.
    /// It then enforces the timeout itself.
    fn waiting_slots(&self) -> usize {
        0
    }

    /// Has its processes start on other machines, if it has any. Called before it judges.
    fn place(&self, _host: Arc<dyn Host>) {}

    /// Opens the models that it computes in this process, if it has any. Called before it judges.
    fn open_models(&self, _models: &dyn JudgeModels) -> Result<(), JudgeError> {
        Ok(())
    }

    /// Checks that it can judge. Called before a run starts.
    fn prepare(&self) -> Result<(), JudgeError> {
        Ok(())
    }

    /// Protection in which it runs programs, if it does: the tier of its sandbox, or a server.
    fn sandbox(&self) -> Option<&'static str> {
        None
    }

    /// Numbers that it reported since the last call, averaged by name.
    fn take_metrics(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Ends what it has started. Judgements in progress and later ones fail.
    fn close(&self) {}

    /// True if verdicts include the outcome.
    fn is_verifier(&self) -> bool {
        false
    }

    /// True if it reads the task's reference answer. A run checks before it starts that every task has one.
    fn reads_answer(&self) -> bool {
        false
    }

    /// A completion that gives a reference answer in the form that it expects; `None` if answers have none.
    fn reference(&self, _answer: &str) -> Option<String> {
        None
    }

    /// Checks the settings.
    fn validate(&self) -> Result<(), ComponentError> {
        Ok(())
    }
}
