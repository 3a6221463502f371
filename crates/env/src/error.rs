use rloom_core::{SampleKey, TrajectoryError};
use rloom_text::TextError;

/// An episode that cannot start, continue or be used.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum EnvError {
    /// A prompt that leaves no room for a completion.
    #[error(
        "the prompt of task {task} has {prompt} tokens, but the context is {context} and a completion needs one"
    )]
    #[diagnostic(help("use a model with a longer context, or remove long prompts from the data"))]
    PromptTooLong {
        /// Index of the task in its dataset.
        task: u64,
        /// Tokens of the prompt.
        prompt: usize,
        /// Maximum number of tokens.
        context: usize,
    },
    /// A demonstration that does not fit.
    #[error(
        "the demonstration of task {task} has {prompt} + {completion} tokens, but the context is {context}"
    )]
    #[diagnostic(help("use a model with a longer context, or remove long demonstrations from the data"))]
    DemonstrationTooLong {
        /// Index of the task in its dataset.
        task: u64,
        /// Tokens before the turn.
        prompt: usize,
        /// Tokens of the turn.
        completion: usize,
        /// Maximum number of tokens.
        context: usize,
    },
    /// A row that does not fit and is not to be cut, or cannot be.
    #[error(
        "the row of task {task} has {tokens} tokens, but only {limit} fit; set `too_long` to drop or cut such rows, or use a \
         model with a longer context"
    )]
    RowTooLong {
        /// Index of the task in its dataset.
        task: u64,
        /// Tokens of the row.
        tokens: usize,
        /// Most tokens that fit.
        limit: usize,
    },
    /// A task without a demonstration in a supervised stage.
    #[error("task {task} has no demonstration")]
    #[diagnostic(help("name the field with it in `demonstration_field`"))]
    NoDemonstration {
        /// Index of the task in its dataset.
        task: u64,
    },
    /// A demonstration that the environment ends before its last turn.
    #[error(
        "the demonstration of task {task} has {turns} turns, but its episode ends after turn {played}: the others would not \
         be trained"
    )]
    DemonstrationCut {
        /// Index of the task in its dataset.
        task: u64,
        /// Turns that were played.
        played: usize,
        /// Turns of the demonstration.
        turns: usize,
    },
    /// A turn with calls where the policy would be asked for a summary.
    #[error(
        "the demonstration of task {task} has calls of tools where the policy is asked for a summary; write the summary \
         there as a message of the assistant, or raise `limit` of the history"
    )]
    NoSummary {
        /// Index of the task in its dataset.
        task: u64,
    },
    /// A demonstration with results of tools, in an environment without tools.
    #[error(
        "the demonstration of task {task} has results of tools, but the environment `{environment}` has no tools; with the \
         environment `tools` every turn is trained, and with the calls and results in `prompt` only the last one"
    )]
    NoTools {
        /// Index of the task in its dataset.
        task: u64,
        /// Name of the environment.
        environment: String,
    },
    /// A tokenizer without a token that ends a completion.
    #[error("the tokenizer has no end-of-text token, so completions cannot end")]
    #[diagnostic(help(
        "set `eos_token` in tokenizer_config.json, or `eos_token_id` in generation_config.json"
    ))]
    NoEndToken,
    /// A prompt without tokens.
    #[error("the prompt of task {task} is empty: the policy's first token would have no prefix")]
    EmptyPrompt {
        /// Index of the task in its dataset.
        task: u64,
    },
    /// A text that cannot be tokenised or decoded.
    #[error("task {task}: {source}")]
    #[diagnostic(forward(source))]
    Text {
        /// Index of the task in its dataset.
        task: u64,
        /// The tokenizer's error.
        source: TextError,
    },
    /// An invalid turn, or an invalid response of the environment to it.
    #[error("sample {key}, turn {turn}: {problem}")]
    Turn {
        /// The trajectory.
        key: SampleKey,
        /// Index of the turn.
        turn: usize,
        /// The defect.
        problem: TurnProblem,
    },
    /// A turn after the end of the episode.
    #[error("sample {key}: the episode is over and accepts no further turns")]
    Over {
        /// The trajectory.
        key: SampleKey,
    },
    /// An episode that was finished without a turn.
    #[error("sample {key}: the episode was finished before the policy's first turn")]
    NoTurn {
        /// The trajectory.
        key: SampleKey,
    },
    /// A world that asks an agent which it does not have, or continues a segment that the agent has not begun.
    #[error(
        "sample {key}: the world cannot ask agent {agent}: it has no such agent, or the agent has no turn to continue"
    )]
    UnknownAgent {
        /// The episode.
        key: SampleKey,
        /// Index of the agent.
        agent: usize,
    },
    /// An inconsistent trajectory.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
    /// A failure of the environment.
    #[error("environment {name}, task {task}: {source}")]
    #[diagnostic(forward(source))]
    Failed {
        /// Name of the environment.
        name: String,
        /// Index of the task in its dataset.
        task: u64,
        /// The environment's error.
        source: Box<dyn miette::Diagnostic + Send + Sync>,
    },
}

/// The defects of a turn.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum TurnProblem {
    /// A step reward that is infinite or NaN.
    #[error("the environment's step reward is {reward}; it must be finite")]
    Reward {
        /// The reward.
        reward: f64,
    },
    /// An observation without tokens.
    #[error("the environment's observation is empty")]
    EmptyObservation,
    /// A new segment without a prompt, or with an observation that is longer than its prompt.
    #[error(
        "the prompt of the environment's new segment has {prompt} tokens, {observed} of which are its observation"
    )]
    SegmentPrompt {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the observation.
        observed: usize,
    },
    /// More tokens than the context has room for.
    #[error("{tokens} tokens, but the context has room for {room}")]
    TooLong {
        /// Tokens of the turn.
        tokens: usize,
        /// Remaining tokens.
        room: usize,
    },
    /// A number of log-probabilities that differs from the number of tokens.
    #[error("{logprobs} log-probabilities for {tokens} tokens")]
    LogprobCount {
        /// Number of log-probabilities.
        logprobs: usize,
        /// Tokens of the turn.
        tokens: usize,
    },
    /// A log-probability that is positive, infinite or NaN.
    #[error("the log-probability of token {position} is {logprob}")]
    Logprob {
        /// Position in the turn.
        position: usize,
        /// The log-probability.
        logprob: f32,
    },
    /// A temperature that is not positive and finite.
    #[error("the temperature is {temperature}; it must be positive and finite")]
    Temperature {
        /// The temperature.
        temperature: f32,
    },
    /// Version spans that do not tile the tokens.
    #[error("the version spans do not tile its {tokens} tokens")]
    Versions {
        /// Tokens of the turn.
        tokens: usize,
    },
}
