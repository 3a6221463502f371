//! Checkpoints: written atomically and verified before use.
//!
//! A checkpoint is written to a temporary folder, synced, then renamed. `MANIFEST` (JSON) contains the format version,
//! size and SHA-256 of every file, and its own checksum. A checkpoint that does not match its manifest is refused, and
//! the error names the checkpoint and the file.

mod folder;
mod manifest;
mod state;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use rloom_core::PolicyId;
use serde::{Deserialize, Serialize};

use folder::{FolderContent, PARTIAL};
pub use folder::{copy_folder, write_folder};
use manifest::Manifest;
pub use manifest::{FORMAT_VERSION, first_difference, verify};
pub use state::{
    Best, BestScore, CheckpointState, GroupCounters, KeptVersion, LeagueState, pinned_weights_folder,
    policy_folder,
};

use crate::{CheckpointDamage, StoreError, disk};

// Areas of the file operations.
const AREA: &str = "checkpoint";
const REMOVE: &str = "checkpoint/remove";
const LINK: &str = "checkpoint/link";

/// Links to checkpoints.
const LINKS: [&str; 2] = ["latest", "best"];

const NAME_FILE: &str = "trainer/name.json";

/// Identifies a checkpoint in a run. Ordered by the progress of training.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointName {
    /// Index of the stage in the recipe.
    pub stage: u32,
    /// Step of the stage: number of batches trained.
    pub step: u64,
    /// Name of the stage.
    pub stage_name: String,
    /// The trained policy.
    #[serde(default)] // missing in format 2, whose version is checked later
    pub policy: PolicyId,
}

impl CheckpointName {
    /// Name of the folder.
    pub fn folder(&self) -> String {
        let Self { step, stage_name, policy, .. } = self;
        if *policy == PolicyId::MAIN {
            format!("{stage_name}-step-{step:06}")
        } else {
            format!("{stage_name}-policy-{policy}-step-{step:06}")
        }
    }
}

/// Name and folder of a checkpoint.
pub type StoredCheckpoint = (CheckpointName, PathBuf);

/// The checkpoints of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// Opens the checkpoints in `directory` for reading, also while a run writes to it.
    pub fn open_for_reading(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Opens the checkpoints in `directory` and removes the remains of interrupted writes.
    pub fn open(directory: PathBuf) -> Result<Self, StoreError> {
        let checkpoints = Self { directory };
        for folder in checkpoints.folders()? {
            if folder.starts_with(PARTIAL) {
                disk::remove_folder(REMOVE, &checkpoints.directory.join(folder))?;
            }
        }
        for link in LINKS {
            // Best effort: the next link replaces it.
            let _ = fs::remove_file(checkpoints.directory.join(format!("{link}.partial")));
        }
        Ok(checkpoints)
    }

    fn folders(&self) -> Result<Vec<String>, StoreError> {
        let read = |source| StoreError::io("read", &self.directory, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(read)? {
            let entry = entry.map_err(read)?;
            if entry.file_type().map_err(read)?.is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Writes a checkpoint. `fill` writes the files into the given folder. Returns the final folder and the total size
    /// of its files in bytes.
    pub fn write<E: From<StoreError>>(
        &self,
        name: &CheckpointName,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(PathBuf, u64), E> {
        // The folder may exist: the same step, saved again after a resume from an older checkpoint.
        write_folder(AREA, &self.directory, &name.folder(), |folder| {
            fill(folder)?;
            Ok(write_name(folder, name)?)
        })
    }

    /// Bytes written so far of a checkpoint that [`write`](Self::write) is writing, in another thread or process.
    pub fn written_bytes(&self, name: &CheckpointName) -> u64 {
        let partial = folder::partial(&self.directory, &name.folder());
        let size = |file: &String| fs::metadata(partial.join(file)).map_or(0, |metadata| metadata.len());
        // A folder that appears, changes or disappears meanwhile is read as far as possible.
        FolderContent::read(&partial).map_or(0, |content| content.files.iter().map(size).sum())
    }

    /// Copies a checkpoint of another run, after verifying it.
    pub fn copy(&self, name: &CheckpointName, source: &Path) -> Result<PathBuf, StoreError> {
        copy_folder(AREA, source, &self.directory, &name.folder(), disk::copy)
    }

    /// Lists the checkpoints, oldest first, and the errors of folders whose name file cannot be read.
    pub fn list(&self) -> Result<(Vec<StoredCheckpoint>, Vec<StoreError>), StoreError> {
        let mut named = Vec::new();
        let mut errors = Vec::new();
        for folder in self.folders()?.into_iter().filter(|folder| !folder.starts_with(PARTIAL)) {
            let path = self.directory.join(&folder);
            match read_name(&path) {
                Ok(name) => named.push((name, path)),
                Err(error) => errors.push(error),
            }
        }
        named.sort();
        Ok((named, errors))
    }

    /// Returns the newest valid checkpoint, and the errors of damaged newer ones. A newer checkpoint of another format
    /// is an error: it is not damaged, and resuming from an older one would discard its work.
    pub fn newest_valid(&self) -> Result<(Option<StoredCheckpoint>, Vec<StoreError>), StoreError> {
        let (mut list, mut damaged) = self.list()?;
        if let Some(place) = damaged.iter().position(|e| matches!(e, StoreError::CheckpointFormat { .. })) {
            return Err(damaged.swap_remove(place));
        }
        while let Some((name, path)) = list.pop() {
            match verify(&path) {
                Ok(()) => return Ok((Some((name, path)), damaged)),
                Err(error @ StoreError::CheckpointFormat { .. }) => return Err(error),
                Err(error) => damaged.push(error),
            }
        }
        Ok((None, damaged))
    }

    /// Removes old checkpoints. Keeps the last `keep_last` of each stage and policy, every step divisible by
    /// `keep_every` (0: no such steps), the last one of each finished stage, and `best`.
    pub fn prune(&self, keep_last: usize, keep_every: u64, best: Option<&Best>) -> Result<(), StoreError> {
        let (list, _) = self.list()?;
        for (i, (name, path)) in list.iter().enumerate() {
            let same = |other: &CheckpointName| (other.stage, other.policy) == (name.stage, name.policy);
            let later = list[i + 1..].iter().filter(|(other, _)| same(other)).count();
            let is_kept = later < keep_last.max(1)
                || (keep_every > 0 && name.step.is_multiple_of(keep_every))
                || best.is_some_and(|best| best.names(name));
            if !is_kept {
                folder::remove(AREA, path)?;
            }
        }
        Ok(())
    }

    /// Points the symbolic link `link` (`latest`, `best`) to a checkpoint, where the platform has symbolic links.
    pub fn link(&self, link: &str, checkpoint: &Path) -> Result<(), StoreError> {
        #[cfg(unix)]
        {
            let Some(target) = checkpoint.file_name() else {
                return Ok(());
            };
            let partial = self.directory.join(format!("{link}.partial"));
            let _ = fs::remove_file(&partial);
            disk::link(LINK, Path::new(target), &partial)?;
            disk::rename(LINK, &partial, &self.directory.join(link))?;
        }
        #[cfg(not(unix))]
        let _ = (link, checkpoint);
        Ok(())
    }
}

/// Writes the name of a checkpoint into its folder.
fn write_name(folder: &Path, name: &CheckpointName) -> Result<(), StoreError> {
    let encoding = |e| StoreError::io("encode", folder, std::io::Error::other(e));
    disk::create_folder(AREA, &folder.join("trainer"))?;
    let name = serde_json::to_vec_pretty(name).map_err(encoding)?;
    disk::write_atomically("checkpoint/trainer/name.json", &folder.join(NAME_FILE), &name)
}

/// Reads the name of a checkpoint.
fn read_name(checkpoint: &Path) -> Result<CheckpointName, StoreError> {
    let file = || NAME_FILE.to_owned();
    let damaged = |damage| StoreError::damaged_checkpoint(checkpoint, damage);
    let bytes = fs::read(checkpoint.join(NAME_FILE))
        .map_err(|source| damaged(CheckpointDamage::Unreadable { file: file(), source }))?;
    serde_json::from_slice(&bytes).map_err(|source| match Manifest::read(checkpoint) {
        // A newer format may name its checkpoints differently.
        Err(format @ StoreError::CheckpointFormat { .. }) => format,
        _ => damaged(CheckpointDamage::Invalid { file: file(), source }),
    })
}
