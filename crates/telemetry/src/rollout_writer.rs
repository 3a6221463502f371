//! Writing of the rollout logs of a stage, and removal of old ones.

use std::path::{Path, PathBuf};

use rloom_core::{Group, Trajectory};
use rloom_store::directory::rollouts_file;

use crate::step_files::recorded_steps;
use crate::{LoggedAdvantages, TelemetryError, rollout_log};

/// Writes the rollout logs of a stage and keeps those of its last steps.
#[derive(Debug)]
pub struct RolloutWriter {
    run: PathBuf,
    stage: String,
    keep: Option<u64>,
    /// True once the files of earlier attempts were checked.
    is_checked: bool,
}

impl RolloutWriter {
    /// Writes the logs of `stage` in the run directory `run`. Keeps those of the last `keep` steps; `None` for all.
    pub fn new(run: &Path, stage: &str, keep: Option<u64>) -> Self {
        Self { run: run.to_owned(), stage: stage.to_owned(), keep, is_checked: false }
    }

    /// Writes the groups that `step` trained, the first `new` of them for the first time, then removes the logs that are too old. `text` returns prompt and completion
    /// of a trajectory as text.
    pub fn write(
        &mut self,
        step: u64,
        groups: &[Group],
        new: usize,
        advantages: LoggedAdvantages<'_>,
        text: &dyn Fn(&Trajectory) -> (String, String),
    ) -> Result<(), TelemetryError> {
        if self.keep != Some(0) {
            let path = rollouts_file(&self.run, &self.stage, step);
            rollout_log::write(&path, step, groups, new, advantages, text)?;
        }
        let Some(last_removed) = self.keep.and_then(|keep| step.checked_sub(keep)) else { return Ok(()) };
        if self.is_checked {
            return self.remove(last_removed);
        }
        for old in recorded_steps(&self.run, &self.stage).into_iter().filter(|&old| old <= last_removed) {
            self.remove(old)?;
        }
        self.is_checked = true;
        Ok(())
    }

    fn remove(&self, step: u64) -> Result<(), TelemetryError> {
        let path = rollouts_file(&self.run, &self.stage, step);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(TelemetryError::io("remove", &path, error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepFiles;
    use crate::synthetic::group;

    /// Steps with a log after the steps `from..=to` were written.
    fn kept(run: &Path, keep: Option<u64>, from: u64, to: u64) -> Vec<u64> {
        let mut writer = RolloutWriter::new(run, "rl", keep);
        for step in from..=to {
            writer
                .write(step, &[group(step, step, 1)], 1, LoggedAdvantages::default(), &|_| {
                    (String::new(), String::new())
                })
                .unwrap();
        }
        recorded_steps(run, "rl")
    }

    fn run() -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        std::fs::create_dir(run.path().join("rollouts")).unwrap();
        run
    }

    #[test]
    fn the_last_steps_are_kept() {
        let run = run();
        assert_eq!(kept(run.path(), None, 1, 5), [1, 2, 3, 4, 5]);
        assert_eq!(kept(run.path(), Some(3), 6, 6), [4, 5, 6], "files of earlier attempts are removed");
        assert_eq!(kept(run.path(), Some(3), 5, 9), [7, 8, 9]);
        assert_eq!(kept(run.path(), Some(0), 10, 11), [0; 0]);
        assert_eq!(kept(run.path(), Some(1), 12, 13), [13]);
    }

    #[test]
    fn other_stages_keep_their_files() {
        let run = run();
        let other = run.path().join("rollouts/rl-step-two-step-000001.jsonl.zst");
        std::fs::write(&other, "").unwrap();
        kept(run.path(), Some(1), 1, 3);
        assert!(other.is_file());
    }

    #[test]
    fn removed_steps_are_known() {
        let run = run();
        kept(run.path(), Some(2), 1, 5);
        let files = StepFiles::new(run.path(), "rl", 5);
        assert_eq!(files.missing(), [1, 2, 3]);
        assert_eq!(files.group(2).unwrap(), None);
        assert_eq!(files.group(4).unwrap().unwrap().0, 4);
        assert_eq!(StepFiles::new(run.path(), "rl", u64::MAX).missing(), [1, 2, 3]);
    }
}
