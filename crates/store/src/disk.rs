//! File operations that must last: every one of journal, checkpoint, configuration and state passes here.
//!
//! An operation is named `area/operation`, such as `journal/append/sync` or `checkpoint/MANIFEST/rename`. Errors name
//! operation and path. Tests can have any operation fail, or end the process at it ([`faults`]); without a test's plan
//! that costs one atomic load.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::StoreError;

/// Runs one operation.
#[cfg(not(any(test, feature = "faults")))]
fn operation<T>(
    _area: &str,
    operation: &'static str,
    path: &Path,
    _halfway: impl FnOnce(),
    run: impl FnOnce() -> std::io::Result<T>,
) -> Result<T, StoreError> {
    run().map_err(|source| StoreError::io(operation, path, source))
}

/// Runs one operation, or what a test has in its place. `halfway` leaves what an interrupted one leaves.
#[cfg(any(test, feature = "faults"))]
fn operation<T>(
    area: &str,
    operation: &'static str,
    path: &Path,
    halfway: impl FnOnce(),
    run: impl FnOnce() -> std::io::Result<T>,
) -> Result<T, StoreError> {
    let result = match crate::faults::reached(area, operation, path) {
        crate::faults::Verdict::Go => run(),
        crate::faults::Verdict::GoThenDie => {
            let _ = run();
            std::process::abort()
        }
        crate::faults::Verdict::HalfwayThenDie => {
            halfway();
            std::process::abort()
        }
        crate::faults::Verdict::Fail(error) => Err(error),
        crate::faults::Verdict::HalfwayThenFail(error) => {
            halfway();
            Err(error)
        }
    };
    result.map_err(|source| StoreError::io(operation, path, source))
}

fn nothing() {}

/// A file being written.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    path: PathBuf,
}

impl DiskFile {
    /// An empty file.
    pub(crate) fn create(area: &str, path: &Path) -> Result<Self, StoreError> {
        let file = operation(area, "create", path, nothing, || File::create(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// A file that is there, to be written on at its end.
    pub(crate) fn append(area: &str, path: &Path) -> Result<Self, StoreError> {
        let file = operation(area, "open", path, nothing, || File::options().append(true).open(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all of the bytes, or an unknown part of them when it fails.
    pub(crate) fn write(&mut self, area: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut half = &self.file;
        let halfway = || {
            let _ = half.write_all(&bytes[..bytes.len() / 2]);
        };
        let mut whole = &self.file;
        operation(area, "write", &self.path, halfway, || whole.write_all(bytes))
    }

    /// Waits until everything written is on the disk. After a failure nobody knows what is: the system may have let
    /// go of the bytes, so that another try would succeed without them.
    pub(crate) fn sync(&self, area: &str) -> Result<(), StoreError> {
        operation(area, "sync", &self.path, nothing, || self.file.sync_all())
    }

    /// Cuts the file off at a length.
    pub(crate) fn truncate(&self, area: &str, length: u64) -> Result<(), StoreError> {
        operation(area, "truncate", &self.path, nothing, || self.file.set_len(length))
    }
}

/// Takes over a file that another crate has written: it counts as one write, and is then synced.
pub(crate) fn adopt(area: &str, path: &Path) -> Result<(), StoreError> {
    let cut_in_half = || {
        if let Ok(file) = File::options().write(true).open(path)
            && let Ok(metadata) = file.metadata()
        {
            let _ = file.set_len(metadata.len() / 2);
        }
    };
    operation(area, "write", path, cut_in_half, || Ok(()))?;
    operation(area, "sync", path, nothing, || File::open(path)?.sync_all())
}

pub(crate) fn create_folder(area: &str, path: &Path) -> Result<(), StoreError> {
    operation(area, "create", path, nothing, || fs::create_dir_all(path))
}

/// The new name is durable once its directory is synced.
pub(crate) fn rename(area: &str, from: &Path, to: &Path) -> Result<(), StoreError> {
    operation(area, "rename", to, nothing, || fs::rename(from, to))
}

pub(crate) fn remove_file(area: &str, path: &Path) -> Result<(), StoreError> {
    operation(area, "remove", path, nothing, || fs::remove_file(path))
}

/// Removes a folder and all that is in it.
pub(crate) fn remove_folder(area: &str, path: &Path) -> Result<(), StoreError> {
    let halfway = || {
        let files = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        if let Some(first) = files.filter(|path| path.is_file()).min() {
            let _ = fs::remove_file(first);
        }
    };
    operation(area, "remove", path, halfway, || fs::remove_dir_all(path))
}

/// Makes what happened to the names in a directory durable.
pub(crate) fn sync_directory(area: &str, path: &Path) -> Result<(), StoreError> {
    operation(area, "sync", path, nothing, || File::open(path)?.sync_all())
}

/// Makes a symbolic link, where the file system has them.
#[cfg(unix)]
pub(crate) fn link(area: &str, target: &Path, path: &Path) -> Result<(), StoreError> {
    operation(area, "link", path, nothing, || std::os::unix::fs::symlink(target, path))
}

/// Writes a file whole or not at all: beside, synced, renamed, and the name synced.
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
        // Best effort: the error that matters is the first one, and a full disk wants its space back.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    sync_directory(area, path.parent().unwrap_or(Path::new(".")))
}
