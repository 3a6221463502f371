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
    /// Waits for the lock as long as `progress` changes at least once per `timeout`.
    pub(crate) fn acquire(
        path: &Path,
        timeout: Duration,
        progress: impl Fn() -> u64,
    ) -> Result<Self, HubError> {
        let io = |source| HubError::Io { path: path.to_owned(), source };
        // The file may belong to another user: it is not truncated.
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(path).map_err(io)?;
        let (mut last, mut since) = (progress(), Instant::now());
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_wait_ends_without_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = FileLock::acquire(&path, Duration::ZERO, || 0).unwrap();
        let error = FileLock::acquire(&path, Duration::from_millis(60), || 0).unwrap_err();
        assert!(matches!(error, HubError::Busy { .. }), "{error}");
        drop(held);
        FileLock::acquire(&path, Duration::ZERO, || 0).unwrap();
    }

    #[test]
    fn progress_extends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = FileLock::acquire(&path, Duration::ZERO, || 0).unwrap();
        let (bytes, timeout) = (AtomicU64::new(0), Duration::from_millis(200));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    std::thread::sleep(Duration::from_millis(40));
                    bytes.fetch_add(1, Ordering::Relaxed);
                }
                drop(held);
            });
            FileLock::acquire(&path, timeout, || bytes.load(Ordering::Relaxed)).unwrap();
        });
    }
}
