use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Set when the run stops: episodes then return their partial result instead of continuing.
#[derive(Debug, Default)]
pub(crate) struct Stopping {
    is_set: AtomicBool,
    changed: Notify,
}

impl Stopping {
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Resolves when the run stops. Cancel-safe.
    pub(crate) async fn wait(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the check: a stop in between is not missed.
            changed.as_mut().enable();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }
}
