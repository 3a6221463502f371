//! Private folders of a daemon in memory file systems.
//!
//! A lock file beside each folder is locked while its daemon lives. A folder whose lock is free is a left-over.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::failure::MirrorFailure;

/// Beginning of the folders' names.
const PREFIX: &str = "rloom-weights-";
/// End of the lock files' names.
const LOCK: &str = ".lock";
/// Attempts to find a name that no other daemon has.
const ATTEMPTS: usize = 16;

/// The memory file system, then the system's temporary directory.
pub(super) fn default_places() -> Vec<PathBuf> {
    vec![PathBuf::from("/dev/shm"), std::env::temp_dir()]
}

/// A folder that this daemon alone uses; removed with the last handle.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    lock_path: PathBuf,
    /// Unlocked after the folder is gone.
    lock: File,
}

impl Home {
    fn create(place: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let path = place.join(format!("{PREFIX}{}", unique()));
            let lock_path = place.join(format!("{}{LOCK}", name_of(&path)));
            let lock = match File::create_new(&lock_path) {
                Ok(lock) => lock,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // Another daemon that removes left-overs may have been faster.
            let is_own = lock.try_lock().is_ok()
                && fs::metadata(&lock_path).is_ok_and(|found| {
                    lock.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
                });
            if is_own {
                let made = DirBuilder::new().mode(0o700).create(&path);
                let home = Self { path, lock_path, lock };
                return made.map(|()| home);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What cannot be removed is a left-over for the next daemon.
        let _ = fs::remove_dir_all(&self.path);
        let _ = fs::remove_file(&self.lock_path);
        let _ = self.lock.unlock();
    }
}

/// A name that no other daemon of this machine has, in all likelihood.
fn unique() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{number}", std::process::id(), time.as_nanos())
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Removes the folders of daemons that are dead.
pub(super) fn remove_left_overs(place: &Path) {
    let own = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = name_of(&path);
        let is_own = entry.metadata().is_ok_and(|metadata| metadata.uid() == own);
        if !is_own || !name.starts_with(PREFIX) {
            continue;
        }
        if name.ends_with(LOCK) {
            // Without its folder: its daemon died early.
            let folder = place.join(name.trim_end_matches(LOCK));
            if !folder.exists() && File::open(&path).is_ok_and(|lock| lock.try_lock().is_ok()) {
                let _ = fs::remove_file(&path);
            }
            continue;
        }
        let lock_path = place.join(format!("{name}{LOCK}"));
        match File::open(&lock_path) {
            Ok(lock) if lock.try_lock().is_ok() => {
                let _ = fs::remove_dir_all(&path);
                let _ = fs::remove_file(&lock_path);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let _ = fs::remove_dir_all(&path);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Bytes that a file system offers this process.
pub(super) fn room(place: &Path) -> io::Result<u64> {
    let system = nix::sys::statvfs::statvfs(place)?;
    let offered = system.blocks_available().saturating_mul(system.fragment_size());
    Ok(match available_memory() {
        Some(memory) if is_memory(place) => offered.min(memory),
        _ => offered,
    })
}

/// True for a file system whose files are in memory.
fn is_memory(place: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::statfs::{TMPFS_MAGIC, statfs};
        statfs(place).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = place;
        false
    }
}

/// Memory that programs can get without swapping, where the system tells.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The folders of this daemon by place; created where they are first needed.
#[derive(Debug, Default)]
pub(super) struct Store {
    homes: Mutex<BTreeMap<PathBuf, Arc<Home>>>,
}

impl Store {
    /// A folder in the first place that has room for `need` bytes.
    pub(super) fn home(&self, places: &[PathBuf], need: u64) -> Result<Arc<Home>, MirrorFailure> {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut found, mut failure) = (Vec::new(), None);
        for place in places {
            let Ok(offered) = room(place) else { continue };
            if offered < need {
                found.push((place.clone(), offered));
                continue;
            }
            if let Some(home) = homes.get(place) {
                return Ok(Arc::clone(home));
            }
            remove_left_overs(place);
            match Home::create(place) {
                Ok(home) => {
                    let home = Arc::new(home);
                    homes.insert(place.clone(), Arc::clone(&home));
                    return Ok(home);
                }
                Err(error) => failure = Some(MirrorFailure::io("create a folder in", place, &error)),
            }
        }
        Err(failure.unwrap_or(MirrorFailure::NoRoom { need, found }))
    }

    /// Lets go of the folders.
    pub(super) fn clear(&self) {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(place: &Path) -> Vec<String> {
        let entries = fs::read_dir(place).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_folder_is_private_and_goes_with_its_store() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::default();
        let places = [place.path().join("absent"), place.path().to_owned()];
        let home = store.home(&places, 1).unwrap();
        assert_eq!(fs::metadata(home.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(home.path().join("a"), "a").unwrap();
        assert!(Arc::ptr_eq(&home, &store.home(&places, 1).unwrap()));
        remove_left_overs(place.path());
        assert!(home.path().join("a").exists(), "a folder in use is not a left-over");
        store.clear();
        drop(home);
        assert_eq!(names(place.path()), Vec::<String>::new());
    }

    #[test]
    fn left_overs_are_removed_and_nothing_else_is() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        // With a lock that nobody holds, without a lock, a lock alone, and files of others.
        for folder in ["rloom-weights-1", "rloom-weights-2", "rloom-other"] {
            fs::create_dir_all(at(folder).join("version")).unwrap();
        }
        fs::write(at("rloom-weights-1.lock"), "").unwrap();
        fs::write(at("rloom-weights-3.lock"), "").unwrap();
        let living = Home::create(place.path()).unwrap();
        remove_left_overs(place.path());
        let mut left = names(place.path());
        left.sort();
        let own = name_of(living.path()).to_owned();
        assert_eq!(left, ["rloom-other".to_owned(), own.clone(), format!("{own}.lock")]);
    }

    #[test]
    fn a_place_without_room_is_named_with_what_it_offers() {
        let place = tempfile::tempdir().unwrap();
        let error = Store::default().home(&[place.path().to_owned()], u64::MAX).unwrap_err();
        let MirrorFailure::NoRoom { need: u64::MAX, found } = &error else { panic!("{error}") };
        assert!(found.len() == 1 && found[0].0 == place.path() && found[0].1 > 0, "{found:?}");
        assert_eq!(names(place.path()), Vec::<String>::new());
    }
}
