//! Failures of the daemon's work on copies.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Failures of the daemon's work on copies, which it reports to the controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MirrorFailure {
    #[error("{} are needed{}", size(*need), offers(found))]
    NoRoom { need: u64, found: Vec<(PathBuf, u64)> },
    #[error("{}: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    #[error("the deadline has passed")]
    Late,
    #[error("the daemon ends")]
    Ending,
    #[error("could not {operation} {}: {reason}", path.display())]
    Io { operation: String, path: PathBuf, reason: String },
    #[error("{reason}")]
    Other { reason: String },
}

impl MirrorFailure {
    /// A failed file operation. A file system that is full is reported with what it has.
    pub(super) fn io(operation: &str, path: &Path, error: &io::Error) -> Self {
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            let place = path.parent().unwrap_or(path);
            return Self::NoRoom { need: 0, found: vec![(place.to_owned(), 0)] };
        }
        Self::Io { operation: operation.to_owned(), path: path.to_owned(), reason: error.to_string() }
    }

    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), problem: problem.into() }
    }

    pub(super) fn other<E: std::fmt::Display>(reason: E) -> Self {
        Self::Other { reason: reason.to_string() }
    }
}

/// A number of bytes for messages.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn offers(found: &[(PathBuf, u64)]) -> String {
    found.iter().enumerate().fold(String::new(), |mut text, (at, (place, bytes))| {
        let separator = if at == 0 { "; " } else { ", " };
        let _ = write!(text, "{separator}{} offers {}", place.display(), size(*bytes));
        text
    })
}

/// Ends of long work other than its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) deadline: Instant,
    pub(super) is_ending: &'a AtomicBool,
}

impl Limits<'_> {
    /// An error once the deadline has passed or the daemon ends.
    pub(super) fn check(&self) -> Result<(), MirrorFailure> {
        if self.is_ending.load(Ordering::Relaxed) {
            return Err(MirrorFailure::Ending);
        }
        if Instant::now() >= self.deadline { Err(MirrorFailure::Late) } else { Ok(()) }
    }

    /// The same with an earlier deadline.
    pub(super) fn until(self, deadline: Instant) -> Self {
        Self { deadline: self.deadline.min(deadline), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_room_is_named_with_need_and_offers() {
        let found = vec![(PathBuf::from("/dev/shm"), 64_000_000), (PathBuf::from("/tmp"), 1_500_000_000)];
        let failure = MirrorFailure::NoRoom { need: 2_000_000_000, found };
        assert_eq!(failure.to_string(), "2.0 GB are needed; /dev/shm offers 64.0 MB, /tmp offers 1.5 GB");
    }
}
