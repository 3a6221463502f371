//! Folders with a manifest: filled under a temporary name, made durable, then renamed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::manifest::{self, FileEntry, Manifest, verify};
use crate::{StoreError, disk};

/// Prefix of a folder that is being written or removed.
pub(super) const PARTIAL: &str = ".partial-";

/// Path of the folder `name` while it is written.
pub(super) fn partial(parent: &Path, name: &str) -> PathBuf {
    parent.join(format!("{PARTIAL}{name}"))
}

/// Writes the folder `name` in `parent` with a manifest, in place of an existing one. `fill` writes the files into the given
/// folder. Returns the final folder and the total size of its files in bytes.
pub fn write_folder<E: From<StoreError>>(
    area: &str,
    parent: &Path,
    name: &str,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(PathBuf, u64), E> {
    let partial = partial(parent, name);
    let folder = parent.join(name);
    let written = write_partial(area, &partial, fill).and_then(|bytes| {
        if folder.exists() {
            remove(area, &folder)?;
        }
        disk::rename(area, &partial, &folder)?;
        disk::sync_directory(area, parent)?;
        Ok(bytes)
    });
    if written.is_err() {
        // Best effort: the first error is the one to report, and a full disk needs the space.
        let _ = fs::remove_dir_all(&partial);
    }
    written.map(|bytes| (folder, bytes))
}

/// Copies a folder that has a manifest, after verifying it. `copy_file` copies one file.
pub fn copy_folder(
    area: &str,
    source: &Path,
    parent: &Path,
    name: &str,
    copy_file: fn(&str, &Path, &Path) -> Result<(), StoreError>,
) -> Result<PathBuf, StoreError> {
    verify(source)?;
    let content = FolderContent::read(source)?;
    let copied = write_folder(area, parent, name, |folder| {
        for relative in &content.folders {
            disk::create_folder(area, &folder.join(relative))?;
        }
        for relative in content.files.iter().filter(|relative| *relative != manifest::FILE) {
            copy_file(area, &source.join(relative), &folder.join(relative))?;
        }
        Ok::<_, StoreError>(())
    });
    copied.map(|(folder, _)| folder)
}

/// Removes a folder. Renames it first, so that an interruption leaves no incomplete folder under its name.
pub(super) fn remove(area: &str, folder: &Path) -> Result<(), StoreError> {
    let area = format!("{area}/remove");
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let removed = folder.with_file_name(format!("{PARTIAL}removed-{name}"));
    if removed.exists() {
        // Left by an interrupted removal.
        disk::remove_folder(&area, &removed)?;
    }
    disk::rename(&area, folder, &removed)?;
    disk::remove_folder(&area, &removed)
}

fn write_partial<E: From<StoreError>>(
    area: &str,
    partial: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<u64, E> {
    if partial.exists() {
        disk::remove_folder(area, partial)?;
    }
    disk::create_folder(area, partial)?;
    fill(partial)?;
    Ok(seal(area, partial)?)
}

/// Adds the manifest to a filled folder and makes all files durable. Returns their total size in bytes.
fn seal(area: &str, partial: &Path) -> Result<u64, StoreError> {
    let encoding = |e| StoreError::io("encode", partial, std::io::Error::other(e));
    let mut files = BTreeMap::new();
    let content = FolderContent::read(partial)?;
    for relative in content.files {
        let path = partial.join(&relative);
        disk::sync_written_file(&format!("{area}/{relative}"), &path)?;
        let entry = FileEntry::read(&path).map_err(|source| StoreError::io("read", &path, source))?;
        files.insert(relative, entry);
    }
    for relative in content.folders {
        disk::sync_directory(&format!("{area}/{relative}"), &partial.join(&relative))?;
    }
    let bytes = files.values().map(|f| f.size).sum();
    let manifest = serde_json::to_vec_pretty(&Manifest::new(files)).map_err(encoding)?;
    disk::write_atomically(&format!("{area}/MANIFEST"), &partial.join(manifest::FILE), &manifest)?;
    Ok(bytes)
}

/// Files and folders in a folder, recursively: sorted relative paths with `/` between names.
#[derive(Debug, Default)]
pub(super) struct FolderContent {
    pub(super) files: Vec<String>,
    pub(super) folders: Vec<String>,
}

impl FolderContent {
    pub(super) fn read(root: &Path) -> Result<Self, StoreError> {
        let mut content = Self::default();
        content.walk(root, "").map_err(|source| StoreError::io("read", root, source))?;
        content.files.sort();
        content.folders.sort();
        Ok(content)
    }

    fn walk(&mut self, directory: &Path, prefix: &str) -> std::io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.walk(&entry.path(), &format!("{name}/"))?;
                self.folders.push(name);
            } else {
                self.files.push(name);
            }
        }
        Ok(())
    }
}
