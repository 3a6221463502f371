//! Detection of a run in which nothing happens.

use std::time::{Duration, Instant};

/// Detects that a stage makes no progress.
#[derive(Debug)]
pub(crate) struct StallDetector {
    timeout: Duration,
    /// Time of the last sign of progress.
    alive: Instant,
    /// Last value of the progress counter.
    progress: u64,
}

impl StallDetector {
    /// Creates a detector that tolerates no progress for `timeout`.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, alive: Instant::now(), progress: 0 }
    }

    /// Notes an event: the stage is alive.
    pub(crate) fn alive(&mut self) {
        self.alive = Instant::now();
    }

    /// Time without progress.
    pub(crate) fn idle(&self) -> Duration {
        self.alive.elapsed()
    }

    /// Takes a counter that grows while anything works. Returns true if the stage has stalled.
    pub(crate) fn is_stalled(&mut self, progress: u64) -> bool {
        if progress != self.progress {
            self.progress = progress;
            self.alive();
        }
        self.idle() > self.timeout
    }
}
