//! The run directory: all files of a run.
//!
//! ```text
//! runs/NAME/
//!   config.toml      resolved configuration; running it again repeats the run
//!   events.jsonl     append-only telemetry
//!   rollouts/        trained trajectories, by stage and step
//!   journal/         groups not yet contained in a durable checkpoint
//!   checkpoints/     Hugging Face folders with the trainer's state
//!   initial/         the initial model, if a resumed attempt needs it
//!   tensorboard/     event files of the same metrics
//!   report.html      written at the end
//!   lock             locked while a process uses the directory
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{StoreError, disk};

/// Folders of a run.
const FOLDERS: [&str; 4] = ["rollouts", "journal", "checkpoints", "tensorboard"];

/// Folder of the initial model, which only some runs have.
pub const INITIAL: &str = "initial";

/// Time to wait for the lock. A process that has ended may hold it for a moment, through a child process that it is starting.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// An open run directory. Holds the lock until it and all [lock handles](Self::lock) are dropped, or the process ends.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    lock: Arc<File>,
}

impl RunDirectory {
    /// Creates a run directory. An existing one must be empty but for what a process leaves that was killed before it had
    /// written the configuration.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let is_leftover = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| {
                let name = entry.file_name();
                name == "lock"
                    || name == "config.toml.partial"
                    || FOLDERS.iter().any(|folder| name == *folder) && is_empty(&entry.path())
            })
        };
        if fs::read_dir(path).is_ok_and(|mut entries| !entries.all(is_leftover)) {
            return Err(StoreError::DirectoryInUse {
                path: path.to_owned(),
                is_run: path.join("config.toml").is_file(),
            });
        }
        disk::create_folder("run", path)?;
        Self::locked(path)
    }

    /// Opens the directory of an earlier run.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if !path.join("config.toml").is_file() {
            return Err(StoreError::NotARun { path: path.to_owned() });
        }
        Self::locked(path)
    }

    fn locked(path: &Path) -> Result<Self, StoreError> {
        for folder in FOLDERS {
            let folder = path.join(folder);
            disk::create_folder("run", &folder)?;
        }
        let lock_path = path.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|source| StoreError::io("open", &lock_path, source))?;
        let started = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), lock: Arc::new(lock) }),
                Err(fs::TryLockError::WouldBlock) if started.elapsed() < LOCK_WAIT => {
                    std::thread::sleep(LOCK_WAIT / 20);
                }
                Err(fs::TryLockError::WouldBlock) => {
                    return Err(StoreError::Locked { path: path.to_owned() });
                }
                Err(fs::TryLockError::Error(source)) => {
                    return Err(StoreError::io("lock", &lock_path, source));
                }
            }
        }
    }

    /// A handle that keeps the directory locked, for a thread that may outlive the `RunDirectory`.
    pub fn lock(&self) -> Arc<File> {
        Arc::clone(&self.lock)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// Path of the event stream.
    pub fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// Folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Folder of the journal's segments.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// Folder of the logs of agents outside of the program.
    pub fn agents(&self) -> PathBuf {
        self.path.join("agents")
    }

    /// Folder of the TensorBoard event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }

    /// Path of a step's rollouts.
    pub fn rollouts(&self, stage: &str, step: u64) -> PathBuf {
        rollouts_file(&self.path, stage, step)
    }

    /// Path of the report.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.html")
    }
}

/// Path of a step's rollouts in the run directory `run`.
pub fn rollouts_file(run: &Path, stage: &str, step: u64) -> PathBuf {
    run.join("rollouts").join(format!("{stage}-step-{step:06}.jsonl.zst"))
}

/// Returns the first of `name`, `name-2`, `name-3` … that does not exist in `parent`.
pub fn free_name(parent: &Path, name: &str) -> String {
    let mut candidate = name.to_owned();
    let mut number = 1u64;
    while parent.join(&candidate).exists() {
        number += 1;
        candidate = format!("{name}-{number}");
    }
    candidate
}
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}
