use std::sync::{Condvar, Mutex, PoisonError};

/// Places of programs that run at the same time.
#[derive(Debug)]
pub(crate) struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A place of a program that runs.
pub(crate) struct Place<'p>(&'p Places);

impl Places {
    /// One place for each processor core: the time of a program does not depend on how many wait.
    pub(crate) fn of_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { free: Mutex::new(cores), freed: Condvar::new() }
    }

    /// Waits for a place; all programs end by their timeouts.
    pub(crate) fn take(&self) -> Place<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}
