//! Cache folder, in the layout of Python's `huggingface_hub`.
//!
//! ```text
//! <cache>/models--organisation--name/
//!   blobs/<etag>                       contents; the etag is the SHA-256 of a large file, git's identifier of others
//!   refs/<revision>                    commit of a branch or tag
//!   snapshots/<commit>/<path>          links to blobs
//!   .no_exist/<commit>/<path>          files that the commit does not have
//!   .rloom/<commit>.json               list of the commit's files
//! <cache>/.locks/models--organisation--name/<etag>.lock
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::HubError;
use crate::listing::Listing;
use crate::reference::{Repository, is_commit};

/// First line by which backup programs recognise a cache.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache.\n";

/// Folder of one repository in the cache.
#[derive(Debug, Clone)]
pub(crate) struct RepositoryCache {
    root: PathBuf,
    folder: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub(crate) fn new(root: &Path, repository: &Repository) -> Self {
        let name = repository.folder_name();
        Self { root: root.to_owned(), folder: root.join(&name), locks: root.join(".locks").join(name) }
    }

    /// Cached commit of a revision.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Records the commit of a branch or tag.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(()); // also for a cache without write access
        }
        self.prepare()?;
        write_atomically(&self.folder.join("refs").join(revision), commit.as_bytes())
    }

    /// Folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// A file of a commit. It exists if it was downloaded.
    pub(crate) fn file(&self, commit: &str, path: &str) -> PathBuf {
        self.snapshot(commit).join(path)
    }

    /// Contents of a file.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Lock of a file's contents.
    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Bytes of a file's contents on disk, complete or partial, by any program.
    pub(crate) fn bytes_of(&self, etag: &str) -> u64 {
        let entries = fs::read_dir(self.folder.join("blobs")).into_iter().flatten().flatten();
        let of_file = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(etag));
        of_file.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    /// Creates the folders that a download writes to.
    pub(crate) fn prepare(&self) -> Result<(), HubError> {
        for folder in [&self.folder.join("blobs"), &self.locks] {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let tag = self.root.join("CACHEDIR.TAG");
        if tag.exists() { Ok(()) } else { fs::write(&tag, CACHE_TAG).map_err(at(&tag)) }
    }

    /// Makes a downloaded blob a file of a commit.
    pub(crate) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<PathBuf, HubError> {
        let file = self.file(commit, path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let ups = "../".repeat(2 + path.matches('/').count());
        // Renamed over an existing link: another process may be reading the file.
        let temporary = temporary(&file);
        symlink(&format!("{ups}blobs/{etag}"), &temporary)
            .or_else(|_| fs::copy(self.blob(etag), &temporary).map(|_| ()))
            .and_then(|()| fs::rename(&temporary, &file))
            .map_err(at(&file))?;
        Ok(file)
    }

    /// Records that a commit does not have a file.
    pub(crate) fn mark_missing(&self, commit: &str, path: &str) -> Result<(), HubError> {
        let marker = self.folder.join(".no_exist").join(commit).join(path);
        if marker.exists() { Ok(()) } else { write_atomically(&marker, b"") }
    }

    fn recorded(&self, commit: &str) -> PathBuf {
        self.folder.join(".rloom").join(format!("{commit}.json"))
    }

    /// Recorded list of a commit's files, by this program or `huggingface_hub`.
    pub(crate) fn listing(&self, commit: &str) -> Option<Listing> {
        let trees = self.folder.join("trees").join(format!("{commit}.json"));
        [self.recorded(commit), trees]
            .iter()
            .find_map(|file| Listing::from_tree(commit, &fs::read(file).ok()?))
    }

    /// Records the list of a commit's files. Not in `trees`: `huggingface_hub` takes a snapshot for incomplete if it does
    /// not have all files listed there, and only those that are needed are downloaded.
    pub(crate) fn record(&self, listing: &Listing) -> Result<(), HubError> {
        let file = self.recorded(&listing.commit);
        if file.exists() {
            return Ok(());
        }
        let tree = listing.to_tree().map_err(|error| at(&file)(error.into()))?;
        write_atomically(&file, &tree)
    }

    /// Files of a commit that are in the cache; `None` without any.
    pub(crate) fn cached_files(&self, commit: &str) -> Option<Listing> {
        let snapshot = self.snapshot(commit);
        let mut paths = Vec::new();
        collect_files(&snapshot, "", &mut paths);
        (!paths.is_empty()).then(|| Listing::from_paths(commit, paths))
    }
}

fn collect_files(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() {
            collect_files(&path, &format!("{prefix}{name}/"), paths);
        } else if path.is_file() {
            paths.push(format!("{prefix}{name}"));
        }
    }
}

/// A temporary name next to `path`. It is different for every writer: threads and processes may write the same file at the
/// same time.
fn temporary(path: &Path) -> PathBuf {
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), WRITERS.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Writes a file so that readers see all of it or none.
fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let temporary = temporary(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(at(folder))?;
    }
    fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)).map_err(at(path))
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Io { path: path.clone(), source }
}

#[cfg(unix)]
fn symlink(target: &str, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &str, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
