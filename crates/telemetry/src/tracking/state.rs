//! The record of what a tracker has, `tracking/NAME.json` in the run directory.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rloom_store::disk::write_atomically;
use serde::{Deserialize, Serialize};

use super::{Tracking, TrackingError};
use crate::TelemetryError;

/// The last global steps that were passed on. The numbers are signed because a tracker may have nothing, not even step 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// Name of the run at the tracker.
    pub(super) id: String,
    pub(super) project: String,
    /// Of the metrics of steps.
    #[serde(default)]
    pub(super) step: i64,
    /// Of the metrics of evaluations.
    #[serde(default = "nothing")]
    pub(super) evaluation: i64,
    /// Of the metrics of validations.
    #[serde(default = "nothing")]
    pub(super) validation: i64,
    /// Of samples.
    #[serde(default = "nothing")]
    pub(super) samples: i64,
}

fn nothing() -> i64 {
    -1
}

/// The record as a file, locked by this process.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// Released when it is dropped.
    _lock: File,
}

impl StateFile {
    /// Locks the record of the run in `directory`.
    pub(super) fn lock(tracking: &Tracking, directory: &Path) -> Result<Self, TrackingError> {
        let (folder, tracker) = (directory.join("tracking"), tracking.kind);
        std::fs::create_dir_all(&folder).map_err(|source| TrackingError::io("create", &folder, source))?;
        let path = folder.join(format!("{tracker}.lock"));
        let lock = File::create(&path).map_err(|source| TrackingError::io("create", &path, source))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: folder.join(format!("{tracker}.json")), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(TrackingError::Busy { tracker, run: directory.to_owned() }),
            Err(TryLockError::Error(source)) => Err(TrackingError::io("lock", &path, source)),
        }
    }

    /// Reads the record. None for a run that was not tracked yet.
    pub(super) fn read(&self) -> Result<Option<State>, TrackingError> {
        match std::fs::read(&self.path) {
            Ok(text) => {
                let damaged = |_| TrackingError::DamagedState { path: self.path.clone() };
                serde_json::from_slice(&text).map(Some).map_err(damaged)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TrackingError::io("read", &self.path, source)),
        }
    }

    /// Replaces the record.
    pub(super) fn write(&self, state: &State) -> Result<(), TrackingError> {
        let text = serde_json::to_vec(state)
            .map_err(|error| TrackingError::io("write", &self.path, error.into()))?;
        write_atomically("tracking", &self.path, &text).map_err(|error| TelemetryError::from(error).into())
    }
}

impl State {
    /// The record of a run that is new to its tracker. Its name there is unique.
    pub(super) fn new(run: &str, project: &str) -> Self {
        let random = RandomState::new().hash_one(run) as u32;
        Self {
            id: format!("{run}-{random:08x}"),
            project: project.to_owned(),
            step: 0,
            evaluation: nothing(),
            validation: nothing(),
            samples: nothing(),
        }
    }
}
