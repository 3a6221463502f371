use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How a running run is asked to stop, from a signal handler or another thread.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicU8>);

impl StopFlag {
    /// Asks once more: the first time to finish the step and save, the second time to stop now. Returns how often
    /// it has been asked.
    pub fn request(&self) -> u8 {
        self.0.fetch_add(1, Ordering::SeqCst).saturating_add(1)
    }

    /// Whether the step under way is to be the last.
    pub fn after_this_step(&self) -> bool {
        self.0.load(Ordering::SeqCst) >= 1
    }

    /// Whether to stop at once.
    pub fn now(&self) -> bool {
        self.0.load(Ordering::SeqCst) >= 2
    }
}
