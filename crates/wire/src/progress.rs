//! Progress of a process, as its beats report it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Phase of a process and the progress within it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Name of the phase, such as `load` or `train`.
    pub phase: String,
    /// Finished units.
    pub done: u64,
    /// Units in total; 0 where unknown.
    pub total: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.phase.is_empty() { "start" } else { &self.phase };
        // Of another process: printed as one short line.
        let phase: String = phase.chars().filter(|c| !c.is_control()).take(80).collect();
        match (self.done, self.total) {
            (0, 0) => write!(formatter, "in phase `{phase}`"),
            (done, 0) => write!(formatter, "in phase `{phase}`, {done} done"),
            (done, total) => write!(formatter, "in phase `{phase}`, {done} of {total} done"),
        }
    }
}

/// Last report of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Progress in the last beat.
    pub progress: Progress,
    /// Time since the last byte arrived.
    pub age: Duration,
}
