//! The run directory: where everything that a run knows lies in plain files.
//!
//! ```text
//! runs/NAME/
//!   config.toml      resolved; running it again repeats the run
//!   events.jsonl     append-only telemetry
//!   rollouts/        what was generated and trained on, by stage and step
//!   journal/         groups not yet contained in a durable checkpoint
//!   checkpoints/     Hugging Face folders with the trainer's state beside
//!   tensorboard/     event files of the same metrics
//!   report.html      written at the end
//!   lock             held while a process works here
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::RunError;

/// An opened run directory. Holding it holds the lock; dropping it, or dying, frees the directory.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Makes a new run directory. It must not exist, or be empty.
    pub fn create(path: &Path) -> Result<Self, RunError> {
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(RunError::DirectoryInUse { path: path.to_owned() });
        }
        fs::create_dir_all(path).map_err(|source| RunError::io("create", path, source))?;
        Self::lock(path)
    }

    /// Opens the directory of an earlier run.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        if !path.join("config.toml").is_file() {
            return Err(RunError::NotARun { path: path.to_owned() });
        }
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, RunError> {
        for folder in ["rollouts", "journal", "checkpoints", "tensorboard"] {
            let folder = path.join(folder);
            fs::create_dir_all(&folder).map_err(|source| RunError::io("create", &folder, source))?;
        }
        let lock_path = path.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|source| RunError::io("open", &lock_path, source))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(RunError::Locked { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(RunError::io("lock", &lock_path, source)),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// The event stream.
    pub fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// Where checkpoints lie.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Where the journal's segments lie.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// Where the TensorBoard event files lie.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }

    /// The file of one step's rollouts.
    pub fn rollouts(&self, stage: &str, step: u64) -> PathBuf {
        self.path.join("rollouts").join(format!("{stage}-step-{step:06}.jsonl.zst"))
    }

    /// The report.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.html")
    }
}

/// The first of `name`, `name-2`, `name-3` … that is free under `parent`.
pub fn free_name(parent: &Path, name: &str) -> String {
    let mut candidate = name.to_owned();
    let mut number = 1u64;
    while parent.join(&candidate).exists() {
        number += 1;
        candidate = format!("{name}-{number}");
    }
    candidate
}

/// Writes a file whole or not at all: beside, synced, renamed.
pub fn write_atomically(path: &Path, contents: &[u8]) -> Result<(), RunError> {
    use std::io::Write;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(contents)?;
        file.sync_all()
    };
    write().map_err(|source| RunError::io("write", &partial, source))?;
    fs::rename(&partial, path).map_err(|source| RunError::io("rename", path, source))
}

/// Makes a rename in `directory` durable.
pub fn sync_directory(directory: &Path) -> Result<(), RunError> {
    File::open(directory).and_then(|d| d.sync_all()).map_err(|source| RunError::io("sync", directory, source))
}
