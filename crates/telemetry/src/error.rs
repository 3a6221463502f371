use std::io;
use std::path::{Path, PathBuf};

use rloom_store::StoreError;

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
