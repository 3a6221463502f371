//! Errors of durable storage.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use miette::Diagnostic;

/// Failures of durable storage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("could not {operation} {}: {source}", path.display())]
    Io {
        /// The operation, such as `write` or `sync`.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory of a new run is not empty.
    #[error("{} is not empty", path.display())]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
        /// True if it contains a run.
        is_run: bool,
    },
    /// The directory contains no run.
    #[error("{} is not a run directory: it has no config.toml", path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
    },
    /// Another process holds the directory's lock.
    #[error("{} is locked by another process", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A journal segment is damaged, other than by an interrupted write at its end.
    #[error("{}: record {record} at byte {offset} is damaged: {damage}", path.display())]
    JournalDamaged {
        /// The segment.
        path: PathBuf,
        /// Index of the record in the segment.
        record: usize,
        /// Byte offset of the record.
        offset: u64,
        /// The mismatch.
        damage: JournalDamage,
    },
    /// A journal segment was written in another format.
    #[error(
        "the journal segment {} has format {found}; this version of rloom supports format {supported}",
        path.display()
    )]
    JournalFormat {
        /// The segment.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this build reads and writes.
        supported: u32,
    },
    /// An earlier failure left the end of a journal segment in an unknown state, so nothing more is written to it.
    #[error("could not write {}: its end is unknown after an earlier failure ({failure})", path.display())]
    JournalClosed {
        /// The segment.
        path: PathBuf,
        /// Message of the earlier failure.
        failure: String,
    },
    /// A checkpoint does not match its manifest.
    #[error("the checkpoint {} is damaged: {damage}", path.display())]
    CheckpointDamaged {
        /// The checkpoint.
        path: PathBuf,
        /// The mismatch.
        damage: CheckpointDamage,
    },
    /// A checkpoint was written in another format.
    #[error(
        "the checkpoint {} has format {found}; this version of rloom supports format {supported}",
        path.display()
    )]
    CheckpointFormat {
        /// The checkpoint.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this build reads and writes.
        supported: u32,
    },
}

/// Damage of a journal record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalDamage {
    /// The segment does not start with a journal's magic bytes.
    #[error("the file does not start with the magic bytes of a journal")]
    Magic,
    /// The checksum of the record's header does not match.
    #[error("its header does not match its checksum, so its length is unknown")]
    Header,
    /// The checksum of the record's payload does not match.
    #[error("its payload does not match its checksum")]
    Payload,
    /// The file ends inside the record.
    #[error("the file ends inside the record")]
    Truncated,
    /// The segment ends before its snapshot is complete.
    #[error("the file ends inside the snapshot that a segment starts with")]
    SnapshotIncomplete,
    /// The payload is not a record.
    #[error("its payload cannot be decoded: {0}")]
    Undecodable(io::Error),
}

/// Damage of a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointDamage {
    /// A file cannot be read.
    #[error("{file} cannot be read: {source}")]
    Unreadable {
        /// Path relative to the checkpoint.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not valid JSON of the expected form.
    #[error("{file} is invalid: {source}")]
    Invalid {
        /// Path relative to the checkpoint.
        file: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The manifest does not match its own checksum.
    #[error("MANIFEST does not match its own checksum")]
    Manifest,
    /// The size of a file differs from the manifest.
    #[error("{file} has {found} bytes instead of {expected}")]
    Size {
        /// Path relative to the checkpoint.
        file: String,
        /// Size of the file in bytes.
        found: u64,
        /// Size in the manifest in bytes.
        expected: u64,
    },
    /// The content of a file differs from the manifest.
    #[error("{file} does not match its checksum")]
    Checksum {
        /// Path relative to the checkpoint.
        file: String,
    },
}

impl StoreError {
    /// A failed file operation.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source }
    }

    pub(crate) fn damaged_checkpoint(path: &Path, damage: CheckpointDamage) -> Self {
        Self::CheckpointDamaged { path: path.to_owned(), damage }
    }
}

// Not derived: the hint of `Io` depends on the system's error.
impl Diagnostic for StoreError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let hint = match self {
            Self::Io { source, .. } => io_hint(source)?.to_owned(),
            Self::DirectoryInUse { path, is_run: true } => {
                format!(
                    "`--resume {}` resumes the run in it; another `--run-name` starts a new one",
                    path.display()
                )
            }
            Self::DirectoryInUse { is_run: false, .. } => {
                "choose another name with `--run-name`, or remove the directory: it contains no run"
                    .to_owned()
            }
            Self::NotARun { .. } => "pass the directory of a run, such as runs/arithmetic".to_owned(),
            Self::Locked { .. } => "wait for that process to exit, or stop it".to_owned(),
            Self::JournalDamaged { .. } => {
                "remove the file to regenerate its groups from the last checkpoint".to_owned()
            }
            Self::JournalFormat { path, .. } => {
                let run = path.parent().and_then(Path::parent).unwrap_or(path);
                format!(
                    "finish the run with the version of rloom that wrote it, or start a new run from its weights with \
                     `--set model.path={}`",
                    run.join("checkpoints/latest").display()
                )
            }
            Self::JournalClosed { .. } => "`--resume` the run once the cause is fixed".to_owned(),
            Self::CheckpointDamaged { .. } => return None,
            Self::CheckpointFormat { path, .. } => format!(
                "finish the run with the version of rloom that wrote it, or start a new run from its weights with \
                 `--set model.path={}`",
                path.display()
            ),
        };
        Some(Box::new(hint))
    }
}

/// Hint for a failed file operation.
fn io_hint(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::StorageFull => Some(
            "free some disk space, then `--resume` the run: its last checkpoint and its journal are intact",
        ),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Some("choose a writable directory with `--set run.directory=…`")
        }
        _ => None,
    }
}
