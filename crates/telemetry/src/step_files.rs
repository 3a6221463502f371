//! The rollout logs of a stage.

use std::collections::BTreeSet;
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

    /// Returns the valid logs with their steps, in order.
    pub fn logs(&self) -> Vec<(u64, PathBuf)> {
        let steps = recorded_steps(&self.run, &self.stage).into_iter();
        steps.filter(|&step| step <= self.last).map(|step| (step, self.path(step))).collect()
    }

    /// True if the log of a step exists.
    pub fn has(&self, step: u64) -> bool {
        step <= self.last && self.path(step).is_file()
    }

    /// Yields the existing steps with their tickets, latest first. Skips files that cannot be read.
    fn tickets_by_step(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        let steps = recorded_steps(&self.run, &self.stage);
        let valid = steps.into_iter().rev().filter(|&step| step <= self.last);
        valid.filter_map(|step| rollout_log::tickets(&self.path(step)).ok().map(|tickets| (step, tickets)))
    }

    /// Returns the trained steps without a log. If the last step is unknown, those before the latest log.
    pub fn missing(&self) -> Vec<u64> {
        let steps: BTreeSet<u64> = recorded_steps(&self.run, &self.stage).into_iter().collect();
        let last = if self.last == u64::MAX { steps.last().copied().unwrap_or(0) } else { self.last };
        (1..=last).filter(|step| !steps.contains(step)).collect()
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

/// Returns the steps of a stage that have a log, in order.
pub(crate) fn recorded_steps(run: &Path, stage: &str) -> Vec<u64> {
    let prefix = format!("{stage}-step-");
    let entries = std::fs::read_dir(run.join("rollouts")).into_iter().flatten().flatten();
    let step = |name: &str| name.strip_prefix(&prefix)?.strip_suffix(".jsonl.zst")?.parse().ok();
    let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.file_name().to_str()?)).collect();
    steps.sort_unstable();
    steps
}
