//! Requests to stop a run.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// Requests a running run to stop, from a signal handler or another thread.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    count: AtomicU8,
    changed: Notify,
}

impl StopFlag {
    /// Requests a stop: the first request finishes the step and saves, the second stops at once. Returns the number of
    /// requests.
    pub fn request(&self) -> u8 {
        let count = self.0.count.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        self.0.changed.notify_waiters();
        count
    }

    /// True if the current step is to be the last.
    pub fn after_this_step(&self) -> bool {
        self.0.count.load(Ordering::SeqCst) >= 1
    }

    /// True if the run is to stop at once.
    pub fn now(&self) -> bool {
        self.0.count.load(Ordering::SeqCst) >= 2
    }

    /// Resolves when the run is to stop at once. Cancel-safe.
    pub(crate) async fn wait_for_now(&self) {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Before the check: a request in between is not missed.
            changed.as_mut().enable();
            if self.now() {
                return;
            }
            changed.await;
        }
    }
}
