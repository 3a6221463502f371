use std::path::{Path, PathBuf};

/// What can end a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A file operation failed.
    #[error("could not {operation} {}: {source}{}", path.display(), io_hint(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The directory of a new run holds something already.
    #[error("{} is not empty\nhint: `--resume {}` goes on with the run in it; `--run-name` starts another", path.display(), path.display())]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
    },
    /// No run lies there.
    #[error("{} holds no run: there is no config.toml in it\nhint: give the run's directory, such as runs/arithmetic", path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
    },
    /// Another process works in the directory.
    #[error("another process is working in {}\nhint: wait for it, or end it; the directory is free as soon as that process is gone", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A journal record does not match its checksum, and it is not the last one.
    #[error("{}: record {record} at byte {offset} is damaged: {reason}\nhint: remove the file to generate its groups again from the last checkpoint", path.display())]
    JournalDamaged {
        /// The segment.
        path: PathBuf,
        /// The record's number.
        record: usize,
        /// Its place.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A checkpoint is not what its manifest says.
    #[error("the checkpoint {} is damaged: {reason}", path.display())]
    CheckpointDamaged {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
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
    /// Nothing finished within the configured time.
    #[error(
        "stage `{stage}`: {waiter} has waited {seconds} s for {awaited}\nhint: raise `rollout.deadline_seconds` if the work is really that slow"
    )]
    Stalled {
        /// The stage.
        stage: String,
        /// Who waited.
        waiter: String,
        /// For what.
        awaited: String,
        /// For how long.
        seconds: u64,
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
    /// The parts do not fit together.
    #[error("{0}")]
    Setup(String),
    /// From the scheduler.
    #[error(transparent)]
    Sched(#[from] rloom_sched::SchedError),
}

fn io_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull => {
            "\nhint: free some space, then `--resume` the run: its last checkpoint and its journal are whole"
        }
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "\nhint: choose a writable place with `--set run.directory=…`"
        }
        _ => "",
    }
}

impl RunError {
    pub(crate) fn io(operation: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source }
    }
}
