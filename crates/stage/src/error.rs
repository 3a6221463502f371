//! Errors of a stage.

use std::path::PathBuf;

use rloom_collect::CollectError;
use rloom_core::ErrorText;
use rloom_engine::{Form, RolloutError, TrainError};
use rloom_learn::MethodError;
use rloom_sched::SchedulerEvent;
use rloom_store::StoreError;
use tokio::task::JoinError;

/// Cause of a failed worker: rollout engine, trainer or evaluation.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The rollout engine failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rollout(#[from] RolloutError),
    /// The trainer failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Train(#[from] TrainError),
    /// A Python function of the algorithm failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Function(#[from] MethodError),
    /// The call of a Python function panicked.
    #[error("calling a function panicked: {message}")]
    FunctionPanicked {
        /// Message of the panic.
        message: String,
    },
    /// The evaluation failed.
    #[error("the evaluation failed: {0}")]
    #[diagnostic(forward(0))]
    Evaluation(Box<CollectError>),
    /// The task of the evaluation panicked.
    #[error("the evaluation panicked: {message}")]
    EvaluationPanicked {
        /// Message of the panic.
        message: String,
    },
    /// The task that loads weights panicked.
    #[error("loading weights panicked: {message}")]
    LoadPanicked {
        /// Message of the panic.
        message: String,
    },
    /// The training thread panicked.
    #[error("the training thread panicked: {message}")]
    TrainerPanicked {
        /// Message of the panic.
        message: String,
    },
    /// The training thread ended before its work was done.
    #[error("the training thread ended before its work was done")]
    TrainerEnded,
}

impl WorkerError {
    pub(crate) fn evaluation_task(error: &JoinError) -> Self {
        Self::EvaluationPanicked { message: error.to_string() }
    }

    pub(crate) fn function_task(error: &JoinError) -> Self {
        Self::FunctionPanicked { message: error.to_string() }
    }

    pub(crate) fn load_task(error: &JoinError) -> Self {
        Self::LoadPanicked { message: error.to_string() }
    }
}

/// A journal record that does not fit the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// A record of a group that was not started.
    #[error("contains group {ticket}, which was not started")]
    GroupNotStarted {
        /// The group's ticket.
        ticket: u64,
    },
    /// A record of work that the scheduler did not request.
    #[error("contains {event:?}, which was not requested")]
    NotRequested {
        /// The recorded event.
        event: SchedulerEvent,
    },
}

/// Reason why a stage failed.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// Run directory, journal or checkpoint.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// The tokenizer could not be written to a checkpoint.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Text(#[from] rloom_text::TextError),
    /// The train engine could not save or restore its state.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Train(#[from] TrainError),
    /// The scheduler rejected an event.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Sched(#[from] rloom_sched::SchedError),
    /// A thread could not be started.
    #[error("could not start the {name} thread: {source}")]
    Thread {
        /// Name of the thread.
        name: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// Weights that another engine has published.
    #[error("these {} weights belong to another engine", form.name())]
    ForeignWeights {
        /// Their form.
        form: Form,
    },
    /// Weights in a trainer's memory could not be written to a folder.
    #[error(transparent)]
    #[diagnostic(help("set `rollout.weights = \"folder\"`: folders do not need the trainer's memory"))]
    Sender(rloom_engine::SendError),
    /// A worker failed.
    #[error("stage `{stage}`, step {step}: {cause}\nlast valid checkpoint: {checkpoint}")]
    #[diagnostic(forward(cause))]
    Worker {
        /// The stage.
        stage: String,
        /// The step.
        step: u64,
        /// The cause.
        cause: WorkerError,
        /// The checkpoint to resume from.
        checkpoint: String,
    },
    /// A completed group that is not in flight.
    #[error("stage `{stage}`: group {ticket} is complete but was not started")]
    UnknownGroup {
        /// The stage.
        stage: String,
        /// The group's ticket.
        ticket: u64,
    },
    /// A batch was cut whose groups are missing.
    #[error("stage `{stage}`: batch {batch} was cut, but {missing} of its groups are missing")]
    IncompleteBatch {
        /// The stage.
        stage: String,
        /// The batch.
        batch: u64,
        /// Number of missing groups.
        missing: usize,
    },
    /// The journal does not fit the run.
    #[error("stage `{stage}`: the journal {what}")]
    #[diagnostic(help("the configuration or the binary has changed since; start a new run"))]
    JournalContradicts {
        /// The stage.
        stage: String,
        /// The contradiction.
        what: Contradiction,
    },
    /// The recorded history cannot be repeated.
    #[error(
        "stage `{stage}`, batch {batch}: the journal has a batch of groups {recorded:?}, this run would cut {now:?}"
    )]
    #[diagnostic(help("the configuration or the binary has changed since; start a new run"))]
    CutMismatch {
        /// The stage.
        stage: String,
        /// The batch.
        batch: u64,
        /// Tickets in the journal.
        recorded: Vec<u64>,
        /// Tickets now.
        now: Vec<u64>,
    },
    /// The loss or its gradient is not finite.
    #[error("stage `{stage}`, step {step}: {cause}{}\nlast valid checkpoint: {checkpoint}", after(*skipped))]
    #[diagnostic(help(
        "skip a limited number of such steps: `--resume RUN --set stage.{stage}.trainer.max_skipped_steps={}`; if many \
         steps are affected, continue from an earlier checkpoint with a lower learning rate: `--resume RUN --from \
         CHECKPOINT --run-name NAME --set stage.{stage}.trainer.learning_rate=…`",
        skipped + 10
    ))]
    NotFinite {
        /// The stage.
        stage: String,
        /// The step.
        step: u64,
        /// The number that is not finite, and the samples that were being trained on.
        cause: TrainError,
        /// Optimiser steps of the stage that were skipped before.
        skipped: u64,
        /// The checkpoint to resume from.
        checkpoint: String,
    },
    /// Retraining did not give the recorded weights.
    #[error(
        "stage `{stage}`, batch {batch}: retraining on the recorded groups gave other weights (digest {now:08x}, \
         recorded {recorded:08x})"
    )]
    #[diagnostic(help("the configuration or the binary has changed since; start a new run"))]
    ReplayDiffers {
        /// The stage.
        stage: String,
        /// The batch.
        batch: u64,
        /// Recorded digest of the weights.
        recorded: u64,
        /// Digest of the weights now.
        now: u64,
    },
    /// The weights that a group is pinned to are not available.
    #[error(
        "stage `{stage}`: group {ticket} is pinned to policy version {version}, whose weights are not available: the \
         journal that contained the group is gone, and the checkpoint did not need them\nresumed from: {checkpoint}"
    )]
    #[diagnostic(help("restore the files of the run's `journal` folder, or start a new run"))]
    PinnedWeightsMissing {
        /// The stage.
        stage: String,
        /// The group's ticket.
        ticket: u64,
        /// The version.
        version: u64,
        /// The checkpoint that the run resumes from.
        checkpoint: String,
    },
    /// Nothing happened within the configured time.
    #[error(
        "stage `{stage}`, step {step}: no progress for {seconds} s\n  {report}\nlast valid checkpoint: {checkpoint}"
    )]
    #[diagnostic(help(
        "raise `run.stall_seconds` if the work is really that slow; `--resume` continues from what is saved"
    ))]
    Stalled {
        /// The stage.
        stage: String,
        /// The current step.
        step: u64,
        /// All waits, and the state of every worker.
        report: String,
        /// Time without progress in seconds.
        seconds: u64,
        /// The checkpoint to resume from.
        checkpoint: String,
    },
    /// More groups failed than may be replaced.
    #[error(
        "stage `{stage}`, step {step}: {failures} groups failed since the last batch; the last one: {last}\nlast \
         valid checkpoint: {checkpoint}"
    )]
    #[diagnostic(help("remove the cause, or raise `stage.{stage}.schedule.max_failures`"))]
    TooManyFailures {
        /// The stage.
        stage: String,
        /// The step that the groups were for.
        step: u64,
        /// Number of failed groups.
        failures: u64,
        /// Cause of the last failure.
        last: String,
        /// Its cause.
        #[diagnostic_source]
        cause: ErrorText,
        /// The checkpoint to resume from.
        checkpoint: String,
    },
    /// A group could not be generated or scored.
    #[error(
        "stage `{stage}`, step {step}, group {ticket} (task {task}): {cause}\nlast valid checkpoint: {checkpoint}"
    )]
    #[diagnostic(forward(cause))]
    Group {
        /// The stage.
        stage: String,
        /// The step that the group was for.
        step: u64,
        /// The group's ticket.
        ticket: u64,
        /// Index of its task.
        task: u64,
        /// The cause.
        cause: ErrorText,
        /// The checkpoint to resume from.
        checkpoint: String,
    },
    /// Filtering left too few groups for a batch.
    #[error(
        "stage `{stage}`, step {step}: {draws} batches' worth of groups were drawn, and too few could be trained on \
         (replaced: {})\nlast valid checkpoint: {checkpoint}",
        filtered.join(", ")
    )]
    #[diagnostic(help(
        "raise `stage.{stage}.{setting}`, or start a run with easier or harder tasks or with a larger \
         `stage.{stage}.algorithm.group_size`"
    ))]
    NothingLeft {
        /// The stage.
        stage: String,
        /// The step that the groups were for.
        step: u64,
        /// Number of replaced groups by reason.
        filtered: Vec<String>,
        /// Batches' worth of groups that may be drawn.
        draws: u32,
        /// The setting that bounds them.
        setting: &'static str,
        /// The checkpoint to resume from.
        checkpoint: String,
    },
    /// The second Ctrl-C: stopped at once.
    #[error("stopped at once; the last checkpoint and the journal are kept")]
    #[diagnostic(help("`--resume {}` continues from there", path.display()))]
    StoppedNow {
        /// The run directory.
        path: PathBuf,
    },
}

impl StageError {
    /// The loss of the processes that train, if that is why the stage failed: it can be restarted from its last checkpoint
    /// with new ones.
    pub fn lost_trainer(&self) -> Option<&TrainError> {
        match self {
            Self::Worker { cause: WorkerError::Train(error), .. } | Self::Train(error) => {
                matches!(error, TrainError::Lost(_)).then_some(error)
            }
            _ => None,
        }
    }
}

/// Optimiser steps that were skipped before an error, as its message shows them.
fn after(skipped: u64) -> String {
    match skipped {
        0 => String::new(),
        1 => "; 1 optimiser step of the stage was skipped before".to_owned(),
        _ => format!("; {skipped} optimiser steps of the stage were skipped before"),
    }
}
