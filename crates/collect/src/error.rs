use std::path::PathBuf;
use std::time::Duration;

use rloom_core::ErrorText;
use rloom_data::DataError;
use rloom_engine::RolloutError;
use rloom_env::EnvError;
use rloom_reward::RewardError;
use rloom_telemetry::TelemetryError;
use rloom_text::TextError;

/// Error of an episode, a group or an evaluation.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// The task could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(#[from] DataError),
    /// The environment failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Environment(#[from] EnvError),
    /// The environment did not answer in time.
    #[error("the `{environment}` environment did not answer within {} s", timeout.as_secs_f64())]
    EnvironmentTimeout {
        /// Name of the environment.
        environment: String,
        /// The limit.
        timeout: Duration,
    },
    /// The rollout engine failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rollout(#[from] RolloutError),
    /// The reward failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Reward(#[from] RewardError),
    /// Rewards failed for too many completions.
    #[error(
        "rewards failed for {dropped} of {episodes} completions, more than `reward.max_dropped = {share}` allows; the last \
         failure: {last}"
    )]
    TooManyDropped {
        /// Completions without a reward.
        dropped: usize,
        /// All completions.
        episodes: usize,
        /// The limit.
        share: f64,
        /// The last failure.
        last: String,
    },
    /// Turns of different episodes have no joint answer.
    #[error("turns of different episodes cannot be combined in the `{environment}` environment")]
    NotCombined {
        /// Name of the environment.
        environment: String,
    },
    /// The thread that computes rewards panicked.
    #[error("the reward panicked: {message}")]
    RewardPanicked {
        /// Message of the panic.
        message: String,
    },
    /// The tokens of a completion cannot be decoded.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Text(#[from] TextError),
    /// Rollouts of a run that were not kept.
    #[error("{} has no rollouts of step {step} of stage `{stage}`, and {steps} steps are to be trained on them", run.display())]
    #[diagnostic(help("{}", match step {
        1 => "name a run that has trained this stage and kept its rollouts (`run.keep_rollouts`)".to_owned(),
        step => format!("set `stage.{stage}.steps = {}`", step - 1),
    }))]
    NotRecorded {
        /// The run.
        run: PathBuf,
        /// The stage.
        stage: String,
        /// The first step without rollouts.
        step: u64,
        /// Steps to train.
        steps: u64,
    },
    /// Rollouts of another batch size or group size.
    #[error("step {step} of stage `{stage}` in {} was trained with `{key} = {recorded}`, not {wanted}", run.display())]
    #[diagnostic(help("set `stage.{stage}.{key} = {recorded}`"))]
    OtherBatch {
        /// The run.
        run: PathBuf,
        /// The stage.
        stage: String,
        /// The step.
        step: u64,
        /// The setting that differs.
        key: &'static str,
        /// Its value in the run.
        recorded: u64,
        /// Its value here.
        wanted: u64,
    },
    /// A rollout log that cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Log(#[from] TelemetryError),
    /// The run stopped before the episode was complete.
    #[error("the run stopped before the episode was complete")]
    Stopped,
}

/// A group that could not be generated or scored.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error("task {task}: {cause}")]
#[diagnostic(forward(cause))]
pub struct GroupFailure {
    /// Index of the task in its dataset.
    pub task: u64,
    /// The cause as text: journals and events carry it.
    pub cause: ErrorText,
}

impl GroupFailure {
    /// The failure of the group that attempts task number `task`.
    pub fn new(task: u64, cause: &CollectError) -> Self {
        Self { task, cause: ErrorText::of(cause) }
    }
}
