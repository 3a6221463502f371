//! Checkpoints of a stage.

use std::path::{Path, PathBuf};

use rloom_core::PolicyVersion;
use rloom_store::StoreError;
use rloom_store::checkpoint::{Best, CheckpointName, Checkpoints};

/// Retention of a run's checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointRetention {
    /// Newest checkpoints of each stage that are kept.
    pub last: usize,
    /// Checkpoints whose step is a multiple of this are kept for ever; 0 for none.
    pub every: u64,
}

/// Tracks which version of a stage is saved, being saved, or to be saved.
#[derive(Debug)]
pub struct StageCheckpoints {
    checkpoints: Checkpoints,
    stage: u32,
    retention: CheckpointRetention,
    /// Newest checkpoint of the stage.
    saved: Option<(u64, PathBuf)>,
    /// The checkpoint that the trainer is writing.
    saving: Option<CheckpointName>,
    /// True while the scheduler waits for a checkpoint.
    requested: bool,
}

impl StageCheckpoints {
    /// Creates the tracker of stage number `stage`; `saved` is the checkpoint that it resumes from.
    pub fn new(
        checkpoints: Checkpoints,
        stage: u32,
        retention: CheckpointRetention,
        saved: Option<(u64, PathBuf)>,
    ) -> Self {
        Self { checkpoints, stage, retention, saved, saving: None, requested: false }
    }

    /// Folder of the newest checkpoint of the stage.
    pub fn newest(&self) -> Option<&Path> {
        self.saved.as_ref().map(|(_, path)| path.as_path())
    }

    /// True while the trainer writes a checkpoint.
    pub(crate) fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// True while the trainer writes the checkpoint of this version.
    pub(crate) fn is_saving_version(&self, version: PolicyVersion) -> bool {
        self.saving.as_ref().is_some_and(|name| name.step == version.0)
    }

    /// Folder of the checkpoint of `version`, if it is the newest.
    pub(crate) fn of_version(&self, version: PolicyVersion) -> Option<&Path> {
        self.saved.as_ref().filter(|(saved, _)| *saved == version.0).map(|(_, path)| path.as_path())
    }

    /// Notes that the scheduler waits for a checkpoint.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// True while the scheduler waits for a checkpoint.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested
    }

    /// Ends the scheduler's wait. Returns true if it waited.
    pub(crate) fn take_request(&mut self) -> bool {
        std::mem::take(&mut self.requested)
    }

    /// Notes that the trainer writes this checkpoint.
    pub(crate) fn start_saving(&mut self, name: CheckpointName) {
        self.saving = Some(name);
    }

    /// Bytes written so far of the checkpoint that the trainer is writing.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.saving.as_ref().map_or(0, |name| self.checkpoints.written_bytes(name))
    }

    /// Points `best` at a checkpoint.
    pub(crate) fn point_best(&self, path: &Path) -> Result<(), StoreError> {
        self.checkpoints.link("best", path)
    }

    /// Takes a durable checkpoint: updates the links and removes checkpoints that need not be kept. Returns the oldest
    /// version of the stage from which a run can resume: the journal is needed from there on.
    pub(crate) fn finish_saving(
        &mut self,
        version: u64,
        path: &Path,
        is_best: bool,
        best: Option<&Best>,
    ) -> Result<u64, StoreError> {
        self.saving = None;
        self.checkpoints.link("latest", path)?;
        if is_best {
            self.checkpoints.link("best", path)?;
        }
        self.checkpoints.prune(self.retention.last, self.retention.every, best)?;
        self.saved = Some((version, path.to_owned()));
        self.oldest_resumable()
    }

    /// The oldest of the newest checkpoints that are kept: any of them can be resumed from if later ones are damaged.
    fn oldest_resumable(&self) -> Result<u64, StoreError> {
        let (list, _) = self.checkpoints.list()?;
        let own: Vec<u64> =
            list.iter().filter(|(name, _)| name.stage == self.stage).map(|(name, _)| name.step).collect();
        let kept = self.retention.last.max(1);
        Ok(if own.len() < kept { 0 } else { own[own.len() - kept] })
    }
}
