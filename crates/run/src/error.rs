use std::path::PathBuf;

use rloom_store::StoreError;
use rloom_telemetry::TelemetryError;

/// What can end a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Durable storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the run's telemetry cannot be read.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The recorded history cannot be repeated.
    #[error(
        "stage `{stage}`, batch {batch}: the journal says that groups {recorded:?} were trained on, this run would take {now:?}\nhint: the configuration or the binary has changed since; start a new run"
    )]
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
    #[error(
        "stage `{stage}`, step {step}: the {what} is not finite; samples in the step: {samples}\nlast good checkpoint: {checkpoint}\nhint: lower the learning rate or `max_grad_norm`, then `--resume`"
    )]
    NotFinite {
        /// The stage.
        stage: String,
        /// The step.
        step: u64,
        /// Loss or gradient.
        what: String,
        /// Which samples were being trained on.
        samples: String,
        /// What can be resumed from.
        checkpoint: String,
    },
    /// Training again did not give the weights that were recorded.
    #[error(
        "stage `{stage}`, batch {batch}: training again on the recorded groups gave other weights (checksum {now:08x}, recorded {recorded:08x})\nhint: the configuration or the binary has changed since; start a new run"
    )]
    ReplayDiffers {
        /// The stage.
        stage: String,
        /// The batch.
        batch: u64,
        /// Checksum of the weights then.
        recorded: u64,
        /// Checksum of the weights now.
        now: u64,
    },
    /// A group is to run under weights that nobody has any more.
    #[error(
        "stage `{stage}`: group {ticket} is pinned to policy version {version}, whose weights are not at hand: the journal \
         that had the group is gone, and the checkpoint has not needed them\nresumed from: {checkpoint}\nhint: put the \
         files of the run's `journal` folder back, or start a new run"
    )]
    PinnedWeightsMissing {
        /// The stage.
        stage: String,
        /// The group's ticket.
        ticket: u64,
        /// The version.
        version: u64,
        /// What the run goes on from.
        checkpoint: String,
    },
    /// Nothing at all happened within the configured time.
    #[error(
        "stage `{stage}`, step {step}: nothing has happened for {seconds} s\n  {report}\nlast good checkpoint: {checkpoint}\nhint: raise `run.stall_seconds` if the work is really that slow; `--resume` goes on from what is saved"
    )]
    Stalled {
        /// The stage.
        stage: String,
        /// The step under way.
        step: u64,
        /// Who waits for whom, and what each worker last did.
        report: String,
        /// For how long.
        seconds: u64,
        /// What can be resumed from.
        checkpoint: String,
    },
    /// More groups failed than may be replaced.
    #[error(
        "stage `{stage}`, step {step}: {failures} groups failed since the last batch; the last one: {last}\nlast good checkpoint: {checkpoint}\nhint: `schedule.max_failures` says how many may"
    )]
    TooManyFailures {
        /// The stage.
        stage: String,
        /// The step that the groups were for.
        step: u64,
        /// How many failed.
        failures: u64,
        /// Why the last one did.
        last: String,
        /// What can be resumed from.
        checkpoint: String,
    },
    /// A group could not be generated or scored.
    #[error(
        "stage `{stage}`, step {step}, group {ticket} (task {task}): {reason}\nlast good checkpoint: {checkpoint}"
    )]
    Group {
        /// The stage.
        stage: String,
        /// The step that the group was for.
        step: u64,
        /// The group's ticket.
        ticket: u64,
        /// Its task.
        task: u64,
        /// What failed.
        reason: String,
        /// What can be resumed from.
        checkpoint: String,
    },
    /// Filtering left too few groups for a batch.
    #[error(
        "stage `{stage}`, step {step}: {draws} batches' worth of groups were drawn, and too few could be trained on (replaced: {})\nlast good checkpoint: {checkpoint}\nhint: easier or harder tasks, a larger group, or a larger `filter.max_draws` in the stage's `[stage.algorithm]`", filtered.join(", ")
    )]
    NothingLeft {
        /// The stage.
        stage: String,
        /// The step that the groups were for.
        step: u64,
        /// How many were replaced, by reason.
        filtered: Vec<String>,
        /// Batches' worth of groups that may be drawn.
        draws: u32,
        /// What can be resumed from.
        checkpoint: String,
    },
    /// The second Ctrl-C: stopped at once.
    #[error("stopped at once; the last checkpoint and the journal are kept\nhint: `--resume {}` goes on from there", path.display())]
    StoppedNow {
        /// The run directory.
        path: PathBuf,
    },
    /// No such sample is in the run's files.
    #[error("stage `{stage}` has no sample {ticket}/{sample} in its rollouts or its journal\nhint: {known}")]
    NoSample {
        /// The stage.
        stage: String,
        /// The group.
        ticket: u64,
        /// The place in the group.
        sample: u32,
        /// What there is instead, as a sentence.
        known: String,
    },
    /// Weights of a version are gone.
    #[error(
        "stage `{stage}`: the weights of version {} are not at hand; there are those of {}\nhint: {}", list(missing), list(at_hand), rebuild_hint(*base, *missing_batch)
    )]
    VersionMissing {
        /// The stage.
        stage: String,
        /// Versions that are asked for and missing.
        missing: Vec<u64>,
        /// Versions that are there.
        at_hand: Vec<u64>,
        /// The last one before the first that is missing.
        base: u64,
        /// A batch after it whose groups are gone, so that it cannot be trained again.
        missing_batch: Option<u64>,
    },
    /// A batch that was trained again gave other weights than it did in the run.
    #[error(
        "stage `{stage}`, batch {batch}: trained again, it gives other weights than the journal has\nhint: weights are the same to the bit only with the same program and the same instruction set; this machine computes with {isa}"
    )]
    OtherWeights {
        /// The stage.
        stage: String,
        /// The batch.
        batch: u64,
        /// How this machine computes.
        isa: String,
    },
    /// A sample that no weights in existence would give again.
    #[error("sample {ticket}/{sample} cannot be repeated: {reason}")]
    Unrepeatable {
        /// The group.
        ticket: u64,
        /// The place in the group.
        sample: u32,
        /// Why.
        reason: String,
    },
    /// The parts do not fit together.
    #[error("{0}")]
    Setup(String),
    /// From the scheduler.
    #[error(transparent)]
    Sched(#[from] rloom_sched::SchedError),
}

fn list(versions: &[u64]) -> String {
    versions.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn rebuild_hint(base: u64, missing_batch: Option<u64>) -> String {
    match missing_batch {
        None => format!("`--rebuild` trains again from version {base} on, by the recorded batches"),
        Some(batch) => format!(
            "it cannot be trained again from version {base} either: the groups of batch {batch} are in neither \
             `rollouts` nor the journal. `run.keep_every` keeps more checkpoints"
        ),
    }
}
