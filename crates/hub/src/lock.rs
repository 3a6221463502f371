//! Lock files between processes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::HubError;

/// Interval between attempts to lock.
const POLL: Duration = Duration::from_millis(50);

/// A lock on a file, released when dropped. Python's `filelock` locks the same file in the same way.
#[derive(Debug)]
pub(crate) struct FileLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl FileLock {
    /// Waits for the lock as long as `progress` changes at least once per `timeout`. Calls `on_wait` once if another process
    /// holds it.
    pub(crate) fn acquire(
        path: &Path,
        timeout: Duration,
        progress: impl Fn() -> u64,
        on_wait: impl FnOnce(),
    ) -> Result<Self, HubError> {
        let io = |source| HubError::Io { path: path.to_owned(), source };
        // The file may belong to another user: it is not truncated.
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(path).map_err(io)?;
        let (mut last, mut since) = (progress(), Instant::now());
        let mut on_wait = Some(on_wait);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                // Some network file systems have no locks. Files are renamed into place, so the cache stays correct.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Self(file));
                }
                Err(TryLockError::Error(error)) => return Err(io(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if let Some(on_wait) = on_wait.take() {
                on_wait();
            }
            let now = progress();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() >= timeout {
                return Err(HubError::Busy { path: path.to_owned() });
            }
            std::thread::sleep(POLL.min(timeout));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_wait_ends_without_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = FileLock::acquire(&path, Duration::ZERO, || 0, || {}).unwrap();
        let waits = Cell::new(0);
        let on_wait = || waits.set(waits.get() + 1);
        let error = FileLock::acquire(&path, Duration::from_millis(60), || 0, on_wait).unwrap_err();
        assert!(matches!(error, HubError::Busy { .. }), "{error}");
        assert_eq!(waits.get(), 1);
        drop(held);
        FileLock::acquire(&path, Duration::ZERO, || 0, || {}).unwrap();
    }

    #[test]
    fn progress_extends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = Cell::new(Some(FileLock::acquire(&path, Duration::ZERO, || 0, || {}).unwrap()));
        let (polls, timeout) = (Cell::new(0), 2 * POLL);
        // Waits four times as long as the timeout, with progress at every poll.
        let progress = || {
            polls.set(polls.get() + 1);
            if polls.get() > 8 {
                held.take();
            }
            polls.get()
        };
        FileLock::acquire(&path, timeout, progress, || {}).unwrap();
    }
}
