use rloom_core::{SampleKey, TrajectoryError};
use rloom_text::TextError;

/// An episode that cannot begin, go on or be used.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// No room is left for a completion.
    #[error(
        "the prompt of task {task} has {prompt} tokens, but the context holds {context} and a completion needs one\n\
         hint: use a model with a longer context, or leave long prompts out of the data"
    )]
    PromptTooLong {
        /// The task's index in its dataset.
        task: u64,
        /// Tokens of its prompt.
        prompt: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A worked example that does not fit.
    #[error(
        "the demonstration of task {task} has {prompt} + {completion} tokens, but the context holds {context}\n\
         hint: use a model with a longer context, or leave long examples out of the data"
    )]
    DemonstrationTooLong {
        /// The task's index in its dataset.
        task: u64,
        /// Tokens of its prompt.
        prompt: usize,
        /// Tokens of its completion.
        completion: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A supervised stage met a task without a worked example.
    #[error(
        "task {task} has no demonstration\nhint: name the field that holds it with `demonstration_field`"
    )]
    NoDemonstration {
        /// The task's index in its dataset.
        task: u64,
    },
    /// A tokenizer that cannot say where a completion ends.
    #[error(
        "the tokenizer has no end-of-text token, so a completion could never end\n\
         hint: set `eos_token` in tokenizer_config.json, or `eos_token_id` in generation_config.json"
    )]
    NoEndToken,
    /// Nothing to begin from.
    #[error("the prompt of task {task} is empty: the policy's first token would have no prefix")]
    EmptyPrompt {
        /// The task's index in its dataset.
        task: u64,
    },
    /// The text of a task cannot become tokens.
    #[error("task {task}: {source}")]
    Text {
        /// The task's index in its dataset.
        task: u64,
        /// Why.
        source: TextError,
    },
    /// A turn that contradicts itself, or does not fit.
    #[error("sample {key:?}, turn {turn}: {problem}")]
    Turn {
        /// The trajectory.
        key: SampleKey,
        /// The turn, counted from 0.
        turn: usize,
        /// What is wrong.
        problem: String,
    },
    /// A turn after the end.
    #[error("sample {key:?}: a turn was taken after the episode was over")]
    Over {
        /// The trajectory.
        key: SampleKey,
    },
    /// A trajectory that was asked for before the policy had a turn.
    #[error("sample {key:?}: the episode was finished before the policy had a turn")]
    NoTurn {
        /// The trajectory.
        key: SampleKey,
    },
    /// A trajectory whose parts contradict each other.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
    /// The environment itself failed.
    #[error("environment {name}, task {task}: {problem}")]
    Failed {
        /// Its name.
        name: String,
        /// The task's index in its dataset.
        task: u64,
        /// What happened.
        problem: String,
    },
}
