//! Models that answer the questions of judges.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{LabelledSteps, Task};

use super::error::ModelError;

/// A question to a judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Message of the user. Judges decode greedily.
    pub text: String,
    /// Maximum number of tokens of the answer.
    pub max_tokens: usize,
    /// Asks for the log-probabilities of the answer's tokens and of alternatives.
    pub logprobs: bool,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The text, without special tokens.
    pub text: String,
    /// True if the limit of tokens ended it.
    pub is_truncated: bool,
    /// For each token, the probable tokens at its place with their log-probabilities, itself first.
    pub alternatives: Vec<Vec<(String, f64)>>,
}

/// A model that answers questions. Equal questions have equal answers, as far as the model is deterministic.
pub trait JudgeModel: Debug + Send + Sync {
    /// Waits for the answer to a question.
    fn ask(&self, question: &Question) -> Result<Answer, ModelError>;

    /// Identity of the weights, such as a digest; empty if it is not known.
    fn identity(&self) -> String {
        String::new()
    }

    /// Checks that it can be asked, without asking it.
    fn check(&self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Ends waits. Questions in progress and later ones may fail.
    fn close(&self) {}
}

/// What a reward model judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RewardModelKind {
    /// Completions.
    Sequence,
    /// The steps of completions.
    Process,
}

/// A reward model that this process computes. Equal completions have equal rewards.
pub trait RewardScorer: Debug + Send + Sync {
    /// The rewards of completions of a task, in order, by a model of completions.
    fn score(&self, task: &Task, completions: &[&str]) -> Result<Vec<f64>, ModelError>;

    /// The logits of the steps of completions of a task, in order, each of right less wrong, by a model of steps. The labels of the
    /// steps are not read.
    fn score_steps(&self, task: &Task, completions: &[LabelledSteps]) -> Result<Vec<Vec<f32>>, ModelError>;
}

/// Opens the models of judges that this process computes, and finds what computes those of others.
pub trait JudgeModels {
    /// Opens a model folder or a hub model. `timeout` limits a question.
    fn open(&self, model: &str, timeout: Duration) -> Result<Arc<dyn JudgeModel>, ModelError>;

    /// Opens the folder of a reward model, which computes at most `batch_tokens` tokens at a time, or one completion.
    fn reward_model(
        &self,
        folder: &str,
        _kind: RewardModelKind,
        _batch_tokens: u64,
    ) -> Result<Arc<dyn RewardScorer>, ModelError> {
        Err(ModelError::Embedded {
            model: folder.to_owned(),
            reason: "this program computes no reward models here".to_owned(),
        })
    }

    /// The interpreter of an installed environment of PyTorch, for reward models.
    fn python(&self) -> Option<String> {
        None
    }
}
