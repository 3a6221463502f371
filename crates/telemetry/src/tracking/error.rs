use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use crate::{TelemetryError, Tracker};

/// Failures of tracking. None of them affects the run that is tracked.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum TrackingError {
    /// The interpreter could not be started.
    #[error("could not start the tracker {tracker} with {python}: {source}")]
    #[diagnostic(help("name a Python interpreter of an environment that has the package `{tracker}`"))]
    Interpreter {
        /// The tracker.
        tracker: Tracker,
        /// The interpreter.
        python: String,
        /// The system's error.
        source: io::Error,
    },
    /// A package of the tracker is missing.
    #[error("{python} has no package {package}")]
    #[diagnostic(help("install it (pip install {tracker}), or name another interpreter with --python"))]
    NotInstalled {
        /// The tracker.
        tracker: Tracker,
        /// Path of the interpreter.
        python: String,
        /// The missing package.
        package: String,
    },
    /// The tracker refused the run.
    #[error("{tracker} cannot be started: {message}; the same command tries again")]
    Refused {
        /// The tracker.
        tracker: Tracker,
        /// Its error.
        message: String,
    },
    /// A call of the tracker failed repeatedly.
    #[error("{tracker}: {message}; the same command continues after the last step")]
    Failed {
        /// The tracker.
        tracker: Tracker,
        /// Its last error.
        message: String,
    },
    /// The process of the tracker ended before it had answered.
    #[error("the process of {tracker} ended ({status}); the same command continues after the last step")]
    Ended {
        /// The tracker.
        tracker: Tracker,
        /// Exit status of the process.
        status: ExitStatus,
    },
    /// The process of the tracker did not answer and was killed.
    #[error("{tracker} did not answer for {minutes} minutes; the same command continues after the last step")]
    Hung {
        /// The tracker.
        tracker: Tracker,
        /// Minutes that it was waited for.
        minutes: u64,
    },
    /// Another process tracks the run.
    #[error("another process passes {} to {tracker} already", run.display())]
    Busy {
        /// The tracker.
        tracker: Tracker,
        /// Folder of the run.
        run: PathBuf,
    },
    /// The record of what the tracker has is unreadable.
    #[error("{} is damaged", path.display())]
    #[diagnostic(help("remove it to track the run as a new one"))]
    DamagedState {
        /// The file.
        path: PathBuf,
    },
    /// Tracking was asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A file operation failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Telemetry(#[from] TelemetryError),
}

impl TrackingError {
    pub(super) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        TelemetryError::io(operation, path, source).into()
    }
}
