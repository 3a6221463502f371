use std::io;
use std::path::{Path, PathBuf};

use rloom_store::StoreError;

use crate::Tracker;

/// Failures of telemetry. None of them has to stop a run.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// A file operation failed.
    #[error("could not {operation} {}: {source}", path.display())]
    Io {
        /// The operation, such as `read` or `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The interpreter that runs a tracker could not be started.
    #[error("could not start the tracker {tracker} with {python}: {source}")]
    #[diagnostic(help(
        "name a Python interpreter of an environment that has the packages `rloom` and `{tracker}`"
    ))]
    Tracker {
        /// The tracker.
        tracker: Tracker,
        /// The interpreter.
        python: String,
        /// The system's error.
        source: io::Error,
    },
    /// Durable storage failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
}

impl TelemetryError {
    /// A failed file operation.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source }
    }
}
