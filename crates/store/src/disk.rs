//! Durable file operations. The journal, checkpoints, configuration and state use only these.
//!
//! An operation is named `area/operation`, such as `journal/append/sync` or `checkpoint/MANIFEST/rename`. Errors carry
//! the operation and the path. Tests can make any operation fail or end the process at it, see [`faults`](crate::faults).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::StoreError;

/// Runs an operation, or the fault that a test injects. `partly` does what an interrupted operation would have done.
fn operation<T>(
    area: &str,
    operation: &'static str,
    path: &Path,
    partly: impl FnOnce(),
    run: impl FnOnce() -> std::io::Result<T>,
) -> Result<T, StoreError> {
    use crate::faults::Outcome;
    let result = match crate::faults::outcome(area, operation, path) {
        Outcome::Run => run(),
        Outcome::RunThenAbort => {
            let _ = run();
            std::process::abort()
        }
        Outcome::RunPartlyThenAbort => {
            partly();
            std::process::abort()
        }
        Outcome::Fail(error) => Err(error),
        Outcome::RunPartlyThenFail(error) => {
            partly();
            Err(error)
        }
    };
    result.map_err(|source| StoreError::io(operation, path, source))
}

fn nothing() {}

/// A file opened for writing.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    path: PathBuf,
}

impl DiskFile {
    /// Creates an empty file.
    pub(crate) fn create(area: &str, path: &Path) -> Result<Self, StoreError> {
        let file = operation(area, "create", path, nothing, || File::create(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Opens an existing file for appending.
    pub(crate) fn append(area: &str, path: &Path) -> Result<Self, StoreError> {
        let file = operation(area, "open", path, nothing, || File::options().append(true).open(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all bytes. After an error, an unknown part of them is written.
    pub(crate) fn write(&mut self, area: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut half = &self.file;
        let partly = || {
            let _ = half.write_all(&bytes[..bytes.len() / 2]);
        };
        let mut whole = &self.file;
        operation(area, "write", &self.path, partly, || whole.write_all(bytes))
    }

    /// Waits until everything written is durable. After an error the durable content is unknown: the system may have
    /// dropped the bytes, so that a second sync would succeed without them.
    pub(crate) fn sync(&self, area: &str) -> Result<(), StoreError> {
        operation(area, "sync", &self.path, nothing, || self.file.sync_all())
    }

    /// Truncates the file to a length.
    pub(crate) fn truncate(&self, area: &str, length: u64) -> Result<(), StoreError> {
        operation(area, "truncate", &self.path, nothing, || self.file.set_len(length))
    }
}

/// Syncs a file that another crate has written. Counts as a write and a sync for fault injection.
pub(crate) fn sync_written_file(area: &str, path: &Path) -> Result<(), StoreError> {
    let halve = || {
        if let Ok(file) = File::options().write(true).open(path)
            && let Ok(metadata) = file.metadata()
        {
            let _ = file.set_len(metadata.len() / 2);
        }
    };
    operation(area, "write", path, halve, || Ok(()))?;
    operation(area, "sync", path, nothing, || File::open(path)?.sync_all())
}

/// Creates a folder and its missing parents.
pub fn create_folder(area: &str, path: &Path) -> Result<(), StoreError> {
    operation(area, "create", path, nothing, || fs::create_dir_all(path))
}

/// Renames a file or folder. Durable once the parent directory is synced.
pub(crate) fn rename(area: &str, from: &Path, to: &Path) -> Result<(), StoreError> {
    operation(area, "rename", to, nothing, || fs::rename(from, to))
}

/// Removes a file.
pub(crate) fn remove_file(area: &str, path: &Path) -> Result<(), StoreError> {
    operation(area, "remove", path, nothing, || fs::remove_file(path))
}

/// Removes a folder and its content.
pub(crate) fn remove_folder(area: &str, path: &Path) -> Result<(), StoreError> {
    let remove_first_file = || {
        let files = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        if let Some(first) = files.filter(|path| path.is_file()).min() {
            let _ = fs::remove_file(first);
        }
    };
    operation(area, "remove", path, remove_first_file, || fs::remove_dir_all(path))
}

/// Copies a file.
pub fn copy(area: &str, from: &Path, to: &Path) -> Result<(), StoreError> {
    operation(area, "copy", to, nothing, || fs::copy(from, to).map(drop))
}

/// Makes `to` a hard link of a file, or a copy where the file system allows no link. Symbolic links are resolved first, so that
/// the content stays when they are removed.
pub fn link_or_copy(area: &str, from: &Path, to: &Path) -> Result<(), StoreError> {
    let from = from.canonicalize().map_err(|source| StoreError::io("read", from, source))?;
    operation(area, "link", to, nothing, || fs::hard_link(&from, to)).or_else(|_| copy(area, &from, to))
}

/// Makes created, renamed and removed entries of a directory durable.
pub(crate) fn sync_directory(area: &str, path: &Path) -> Result<(), StoreError> {
    operation(area, "sync", path, nothing, || File::open(path)?.sync_all())
}

/// Creates a symbolic link.
#[cfg(unix)]
pub(crate) fn link(area: &str, target: &Path, path: &Path) -> Result<(), StoreError> {
    operation(area, "link", path, nothing, || std::os::unix::fs::symlink(target, path))
}

/// Writes a file atomically and durably: to a temporary file, which is synced and renamed.
pub fn write_atomically(area: &str, path: &Path, contents: &[u8]) -> Result<(), StoreError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let write = || {
        let mut file = DiskFile::create(area, &partial)?;
        file.write(area, contents)?;
        file.sync(area)?;
        rename(area, &partial, path)
    };
    if let Err(error) = write() {
        // Best effort: the first error is the one to report, and a full disk needs the space.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    sync_directory(area, path.parent().unwrap_or(Path::new(".")))
}
