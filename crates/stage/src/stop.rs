use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Requests a running run to stop, from a signal handler or another thread.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicU8>);

impl StopFlag {
    /// Requests a stop: the first request finishes the step and saves, the second stops at once. Returns the number of
    /// requests.
    pub fn request(&self) -> u8 {
        self.0.fetch_add(1, Ordering::SeqCst).saturating_add(1)
    }

    /// True if the current step is to be the last.
    pub fn after_this_step(&self) -> bool {
        self.0.load(Ordering::SeqCst) >= 1
    }

    /// True if the run is to stop at once.
    pub fn now(&self) -> bool {
        self.0.load(Ordering::SeqCst) >= 2
    }
}
