//! State of a run.

use std::fs::{File, TryLockError};
use std::path::Path;

use serde::Serialize;

use crate::event::{Event, EventLine};

/// State of a run according to its event stream and its lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// All stages are trained.
    Finished,
    /// The last attempt was interrupted. The run can be resumed.
    Interrupted,
    /// The last attempt failed with this message.
    Failed(String),
    /// A process is training.
    Running,
    /// The process of the last attempt ended without a final event.
    Killed,
}

impl RunState {
    /// Returns the name in exports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::Failed(_) => "failed",
            Self::Running => "running",
            Self::Killed => "killed",
        }
    }
}

/// Finds the end of the last attempt in the lines of an event stream.
#[derive(Debug, Default)]
pub struct StateReader {
    end: Option<RunState>,
}

impl StateReader {
    /// Adds a line, in order.
    pub fn add(&mut self, line: &EventLine) {
        match &line.event {
            Event::RunStarted { .. } => self.end = None,
            Event::RunFinished { .. } => self.end = Some(RunState::Finished),
            Event::RunInterrupted { .. } => self.end = Some(RunState::Interrupted),
            Event::RunFailed { error, .. } => self.end = Some(RunState::Failed(error.clone())),
            _ => {}
        }
    }

    /// Returns the end that the last attempt has reported.
    pub(crate) fn end(&self) -> Option<&RunState> {
        self.end.as_ref()
    }

    /// Returns the state of the run in `directory` after all lines were added.
    pub fn state(&self, directory: &Path) -> RunState {
        self.end
            .clone()
            .unwrap_or_else(|| if is_locked(directory) { RunState::Running } else { RunState::Killed })
    }
}

/// True if a process uses the run directory.
pub(crate) fn is_locked(directory: &Path) -> bool {
    let lock = File::open(directory.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
