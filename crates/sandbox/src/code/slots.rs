use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A limit on the programs that run at a time.
#[derive(Debug)]
pub(super) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A place of a program that runs.
pub(super) struct Slot<'s>(&'s Slots);

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count.max(1)), freed: Condvar::new() }
    }

    /// Waits for a place; `None` if there is none before the deadline.
    pub(super) fn take(&self, deadline: Instant) -> Option<Slot<'_>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            let left = deadline.checked_duration_since(Instant::now())?;
            free = self.freed.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Some(Slot(self))
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}
