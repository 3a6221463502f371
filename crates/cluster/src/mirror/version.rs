//! Versions that a daemon has.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::failure::MirrorFailure;
use super::manifest::MirrorFile;
use super::message::{Base, SentFile};
use super::store::Home;

/// A complete copy of a version; removed with the last handle.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) files: Vec<MirrorFile>,
    folder: Part,
    /// The delta that was last made or received; `None` beside a base that gives none.
    delta: Mutex<Option<(Base, Option<Arc<Delta>>)>>,
}

impl Version {
    pub(super) fn path(&self) -> &Path {
        &self.folder.path
    }

    /// An empty folder beside it.
    pub(super) fn beside(&self, name: &str) -> Result<Part, MirrorFailure> {
        self.folder.beside(name)
    }

    /// The file called `name`.
    pub(super) fn file(&self, name: &str) -> Option<&MirrorFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The delta, locked: one thread makes it, the others wait for it.
    pub(super) fn delta(&self) -> MutexGuard<'_, Option<(Base, Option<Arc<Delta>>)>> {
        self.delta.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The difference of a version to its base, a file per file that has one; removed with the last handle.
#[derive(Debug)]
pub(super) struct Delta {
    pub(super) files: Vec<SentFile>,
    folder: Part,
}

impl Delta {
    pub(super) fn new(files: Vec<SentFile>, folder: Part) -> Self {
        Self { files, folder }
    }

    /// Path of the delta of the `index`-th file.
    pub(super) fn path(&self, index: usize) -> PathBuf {
        delta_path(&self.folder, index)
    }
}

/// Path of the delta of the `index`-th file in a folder.
pub(super) fn delta_path(folder: &Part, index: usize) -> PathBuf {
    folder.path.join(index.to_string())
}

/// A folder of this daemon's own, such as one that is being filled; removed with its handle.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    home: Arc<Home>,
}

impl Part {
    /// An empty folder, whose name begins with `name`.
    pub(super) fn new(home: Arc<Home>, name: &str) -> Result<Self, MirrorFailure> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // A folder of the same version may still be read.
        let path = home.path().join(format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|error| MirrorFailure::io("create", &path, &error))?;
        Ok(Self { path, home })
    }

    /// An empty folder beside this one.
    pub(super) fn beside(&self, name: &str) -> Result<Self, MirrorFailure> {
        Self::new(Arc::clone(&self.home), name)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder as a complete version.
    pub(super) fn complete(self, name: &str, files: Vec<MirrorFile>) -> Version {
        Version { name: name.to_owned(), files, folder: self, delta: Mutex::default() }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // What cannot be removed goes with the daemon's folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}
