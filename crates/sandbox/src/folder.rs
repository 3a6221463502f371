//! Working folders on the machine, for tiers without a file system of their own.
//!
//! What a program leaves there can be anything: folders that cannot be entered, links to other places, folders nested so
//! deeply that their path is too long.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

/// Levels of folders that a program may nest.
const DEEPEST: usize = 16;

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct WorkingFolder(PathBuf);

impl WorkingFolder {
    pub(crate) fn create() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("rloom-sandbox-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                // Left by a process that had this number before.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkingFolder {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        let _ = remove(&self.0);
    }
}

/// Removes a folder with its content.
fn remove(path: &Path) -> io::Result<()> {
    let root = open(CWD, &path_name(path)?)?;
    let mut moved = 0;
    loop {
        let before = moved;
        empty(&root, &root, 0, &mut moved)?;
        if moved == before {
            return fs::remove_dir(path);
        }
    }
}

fn path_name(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

fn open(parent: impl std::os::fd::AsFd, name: &CString) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name.as_c_str(), flags, Mode::empty())?)
}

/// Removes the content of a folder. Folders that are nested too deeply move to the root, for the next pass.
fn empty(folder: &OwnedFd, root: &OwnedFd, depth: usize, moved: &mut u64) -> io::Result<()> {
    let entries: Vec<(CString, FileType)> = Dir::read_from(folder)?
        .filter_map(|entry| entry.ok().map(|entry| (entry.file_name().to_owned(), entry.file_type())))
        .filter(|(name, _)| !matches!(name.to_bytes(), b"." | b".."))
        .collect();
    for (name, _) in entries {
        let name = name.as_c_str();
        let status = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
            continue;
        }
        rustix::fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty())?;
        if depth >= DEEPEST {
            *moved += 1;
            rustix::fs::renameat(folder, name, root, format!(".moved-{moved}"))?;
        } else {
            empty(&open(folder, &name.to_owned())?, root, depth + 1, moved)?;
            rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?;
        }
    }
    Ok(())
}

/// True if a folder has more files or bytes than allowed, or is nested too deeply to tell.
pub(crate) fn exceeds(folder: &Path, files: u64, bytes: u64) -> bool {
    let (mut found_files, mut found_bytes) = (0, 0);
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => return true,
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            found_files += 1;
            // Allocated blocks: a hole takes no room.
            found_bytes += std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
            if found_files > files || found_bytes > bytes || depth > DEEPEST {
                return true;
            }
            if metadata.is_dir() {
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn anything_can_be_removed_but_the_target_of_a_link() {
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join("file"), "kept").unwrap();
        let folder = WorkingFolder::create().unwrap();
        let path = folder.path().to_owned();
        std::os::unix::fs::symlink(kept.path(), path.join("link")).unwrap();
        let locked = path.join("locked");
        fs::create_dir(&locked).unwrap();
        fs::write(locked.join("file"), "").unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o0)).unwrap();
        let mut nested = open(CWD, &path_name(&path).unwrap()).unwrap();
        let name = CString::new("n".repeat(200)).unwrap();
        for _ in 0..300 {
            rustix::fs::mkdirat(&nested, name.as_c_str(), Mode::RWXU).unwrap();
            nested = open(&nested, &name).unwrap();
        }
        drop(nested);
        drop(folder);
        assert!(!path.exists());
        assert_eq!(fs::read_to_string(kept.path().join("file")).unwrap(), "kept");
    }

    #[test]
    fn files_bytes_and_depth_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir(path.join("a")).unwrap();
        fs::write(path.join("a/b"), [1; 10_000]).unwrap();
        assert!(!exceeds(path, 2, 100_000));
        assert!(exceeds(path, 1, 100_000), "files");
        assert!(exceeds(path, 2, 5_000), "bytes");
        fs::create_dir_all(path.join("d/".repeat(DEEPEST + 2))).unwrap();
        assert!(exceeds(path, 1000, 1 << 30), "depth");
    }
}
