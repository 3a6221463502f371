//! The rollout logs of a stage.

use std::path::{Path, PathBuf};

use crate::{LoggedTrajectory, TelemetryError, rollout_log};
use rloom_store::directory::rollouts_file;

/// The rollout logs of a stage.
#[derive(Debug)]
pub struct StepFiles {
    run: PathBuf,
    stage: String,
    /// The last valid step. Later ones were trained by an interrupted attempt and are repeated.
    last: u64,
}

impl StepFiles {
    /// Returns the logs of `stage` in the run directory `run`, up to step `last`.
    pub fn new(run: &Path, stage: &str, last: u64) -> Self {
        Self { run: run.to_owned(), stage: stage.to_owned(), last }
    }

    /// Returns the path of a step's log.
    pub fn path(&self, step: u64) -> PathBuf {
        rollouts_file(&self.run, &self.stage, step)
    }

    /// True if the log of a step exists.
    pub fn has(&self, step: u64) -> bool {
        step <= self.last && self.path(step).is_file()
    }

    /// Yields the existing steps with their tickets, latest first. Skips files that cannot be read.
    fn tickets_by_step(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        let prefix = format!("{}-step-", self.stage);
        let mut steps: Vec<u64> = std::fs::read_dir(self.run.join("rollouts"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                name.to_str()?.strip_prefix(&prefix)?.strip_suffix(".jsonl.zst")?.parse().ok()
            })
            .filter(|&step| step <= self.last)
            .collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        steps
            .into_iter()
            .filter_map(|step| rollout_log::tickets(&self.path(step)).ok().map(|tickets| (step, tickets)))
    }

    /// Finds a group and the step that trained it.
    pub fn group(&self, ticket: u64) -> Result<Option<(u64, Vec<LoggedTrajectory>)>, TelemetryError> {
        let step = self.tickets_by_step().find(|(_, tickets)| tickets.contains(&ticket));
        let read = |(step, _)| Ok((step, rollout_log::group(&self.path(step), ticket)?));
        step.map(read).transpose()
    }

    /// Returns all trained tickets, in any order.
    pub fn tickets(&self) -> Vec<u64> {
        self.tickets_by_step().flat_map(|(_, tickets)| tickets).collect()
    }
}
