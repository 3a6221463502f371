//! Checkpoints: whole or not at all, and checked before they are believed.
//!
//! A checkpoint is written beside its place, synced, then renamed. `MANIFEST` (JSON) holds the format version and
//! size and SHA-256 of every file, and a checksum of itself; a checkpoint that does not match it is refused by name.

mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use state::{Best, Drawn, TrainerState, sampler_folder};

use crate::disk;
use crate::{CheckpointDamage, StoreError};

/// The layout that this program writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// Names of the file operations here.
const AREA: &str = "checkpoint";
const REMOVE: &str = "checkpoint/remove";
const POINT: &str = "checkpoint/point";

const PARTIAL: &str = ".partial-";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileEntry {
    size: u64,
    sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    format_version: u32,
    files: BTreeMap<String, FileEntry>,
    /// CRC-32C of what stands above, so that a damaged version is not taken for another format.
    #[serde(default)]
    checksum: Option<u32>,
}

impl Manifest {
    fn checksum(format_version: u32, files: &BTreeMap<String, FileEntry>) -> u32 {
        files.iter().fold(crc32c::crc32c(&format_version.to_le_bytes()), |sum, (name, entry)| {
            crc32c::crc32c_append(sum, format!("\n{name} {} {}", entry.size, entry.sha256).as_bytes())
        })
    }
}

/// Names a checkpoint: the stage's place in the recipe, its name, and the step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointName {
    /// Place of the stage in the recipe.
    pub stage: u32,
    /// Step of the stage: batches trained.
    pub step: u64,
    /// The stage's name.
    pub stage_name: String,
}

impl CheckpointName {
    /// The folder's name.
    pub fn folder(&self) -> String {
        format!("{}-step-{:06}", self.stage_name, self.step)
    }
}

/// A checkpoint that lies in a run directory, and its folder.
pub type Found = (CheckpointName, PathBuf);

/// The checkpoints of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// The checkpoints in `directory`, to be looked at: a run may be at work there.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The checkpoints in `directory`. What an interrupted write left there is removed.
    pub fn open(directory: PathBuf) -> Result<Self, StoreError> {
        let checkpoints = Self::at(directory);
        for folder in checkpoints.folders()? {
            if folder.starts_with(PARTIAL) {
                let path = checkpoints.directory.join(folder);
                disk::remove_folder(REMOVE, &path)?;
            }
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

    /// Writes a checkpoint; `fill` puts the files into the folder that it is given. Returns the folder and its bytes.
    pub fn write<E: From<StoreError>>(
        &self,
        name: &CheckpointName,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(PathBuf, u64), E> {
        let partial = self.directory.join(format!("{PARTIAL}{}", name.folder()));
        let last = self.directory.join(name.folder());
        let written = Self::write_partial(&partial, name, fill).and_then(|bytes| {
            if last.exists() {
                // The same step saved again after a resume from an older checkpoint.
                self.remove(&last)?;
            }
            disk::rename(AREA, &partial, &last)?;
            disk::sync_directory(AREA, &self.directory)?;
            Ok(bytes)
        });
        if written.is_err() {
            // Best effort: the error that matters is the first one, and a full disk wants its space back.
            let _ = fs::remove_dir_all(&partial);
        }
        written.map(|bytes| (last, bytes))
    }

    /// Takes a checkpoint away. Renamed first, so that a death in the middle leaves no half-removed one under its name.
    fn remove(&self, checkpoint: &Path) -> Result<(), StoreError> {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        let partial = self.directory.join(format!("{PARTIAL}removed-{name}"));
        disk::rename(REMOVE, checkpoint, &partial)?;
        disk::remove_folder(REMOVE, &partial)
    }

    fn write_partial<E: From<StoreError>>(
        partial: &Path,
        name: &CheckpointName,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<u64, E> {
        if partial.exists() {
            disk::remove_folder(AREA, partial)?;
        }
        disk::create_folder(AREA, partial)?;
        fill(partial)?;
        Ok(Self::finish_partial(partial, name)?)
    }

    fn finish_partial(partial: &Path, name: &CheckpointName) -> Result<u64, StoreError> {
        let encoding = |e| StoreError::io("encode", partial, std::io::Error::other(e));
        let trainer = partial.join("trainer");
        disk::create_folder(AREA, &trainer)?;
        let named = serde_json::to_vec_pretty(name).map_err(encoding)?;
        disk::write_atomically("checkpoint/trainer/name.json", &trainer.join("name.json"), &named)?;
        let mut files = BTreeMap::new();
        let below = Below::read(partial)?;
        for relative in below.files {
            let path = partial.join(&relative);
            disk::adopt(&format!("{AREA}/{relative}"), &path)?;
            let entry = describe(&path).map_err(|source| StoreError::io("read", &path, source))?;
            files.insert(relative, entry);
        }
        for relative in below.folders {
            disk::sync_directory(&format!("{AREA}/{relative}"), &partial.join(&relative))?;
        }
        let bytes = files.values().map(|f| f.size).sum();
        let checksum = Some(Manifest::checksum(FORMAT_VERSION, &files));
        let manifest = Manifest { format_version: FORMAT_VERSION, files, checksum };
        let manifest = serde_json::to_vec_pretty(&manifest).map_err(encoding)?;
        disk::write_atomically("checkpoint/MANIFEST", &partial.join("MANIFEST"), &manifest)?;
        Ok(bytes)
    }

    /// Every checkpoint in the order of training, oldest first. A folder whose name file cannot be read is listed
    /// among the damaged ones.
    pub fn list(&self) -> Result<(Vec<Found>, Vec<StoreError>), StoreError> {
        let mut sound = Vec::new();
        let mut damaged = Vec::new();
        for folder in self.folders()?.into_iter().filter(|folder| !folder.starts_with(PARTIAL)) {
            let path = self.directory.join(&folder);
            match read_name(&path) {
                Ok(name) => sound.push((name, path)),
                Err(error) => damaged.push(error),
            }
        }
        sound.sort();
        Ok((sound, damaged))
    }

    /// The newest checkpoint that is whole, and why newer ones are not. A newer one of another format is an error: it
    /// is not damaged, and going back behind it would throw sound work away.
    pub fn newest_sound(&self) -> Result<(Option<Found>, Vec<StoreError>), StoreError> {
        let (mut list, mut damaged) = self.list()?;
        while let Some((name, path)) = list.pop() {
            match verify(&path) {
                Ok(()) => return Ok((Some((name, path)), damaged)),
                Err(error @ StoreError::CheckpointFormat { .. }) => return Err(error),
                Err(error) => damaged.push(error),
            }
        }
        Ok((None, damaged))
    }

    /// Removes what need not be kept: of each stage the last `keep_last` stay, every step that `keep_every` divides
    /// stays (0: none for that reason), and so do the last one of each finished stage and `best`.
    pub fn prune(&self, keep_last: usize, keep_every: u64, best: Option<&Path>) -> Result<(), StoreError> {
        let (list, _) = self.list()?;
        for (i, (name, path)) in list.iter().enumerate() {
            let later = list[i + 1..].iter().filter(|(n, _)| n.stage == name.stage).count();
            let last_of_finished_stage = later == 0;
            let kept = later < keep_last.max(1)
                || last_of_finished_stage
                || (keep_every > 0 && name.step.is_multiple_of(keep_every))
                || best == Some(path.as_path());
            if !kept {
                self.remove(path)?;
            }
        }
        Ok(())
    }

    /// Points `link` (`latest`, `best`) at a checkpoint, where the file system has symbolic links.
    pub fn point(&self, link: &str, checkpoint: &Path) -> Result<(), StoreError> {
        #[cfg(unix)]
        {
            let Some(target) = checkpoint.file_name() else {
                return Ok(());
            };
            let partial = self.directory.join(format!("{link}.partial"));
            let _ = fs::remove_file(&partial);
            disk::link(POINT, Path::new(target), &partial)?;
            disk::rename(POINT, &partial, &self.directory.join(link))?;
        }
        #[cfg(not(unix))]
        let _ = (link, checkpoint);
        Ok(())
    }
}

fn read_name(path: &Path) -> Result<CheckpointName, StoreError> {
    let file = || "trainer/name.json".to_owned();
    let bytes = fs::read(path.join("trainer/name.json")).map_err(|source| {
        StoreError::damaged_checkpoint(path, CheckpointDamage::Unreadable { file: file(), source })
    })?;
    serde_json::from_slice(&bytes).map_err(|source| {
        StoreError::damaged_checkpoint(path, CheckpointDamage::Invalid { file: file(), source })
    })
}

/// Checks every file of a checkpoint against its manifest.
pub fn verify(path: &Path) -> Result<(), StoreError> {
    let damaged = |damage| StoreError::damaged_checkpoint(path, damage);
    let file = || "MANIFEST".to_owned();
    let bytes = fs::read(path.join("MANIFEST"))
        .map_err(|source| damaged(CheckpointDamage::Unreadable { file: file(), source }))?;
    let manifest: Manifest = serde_json::from_slice(&bytes)
        .map_err(|source| damaged(CheckpointDamage::Invalid { file: file(), source }))?;
    let Manifest { format_version, files, checksum } = manifest;
    let expected = Manifest::checksum(format_version, &files);
    // Format 1 had no checksum here.
    if checksum.is_some_and(|found| found != expected) || (checksum.is_none() && format_version != 1) {
        return Err(damaged(CheckpointDamage::Manifest));
    }
    if format_version != FORMAT_VERSION {
        return Err(StoreError::CheckpointFormat {
            path: path.to_owned(),
            found: format_version,
            supported: FORMAT_VERSION,
        });
    }
    for (name, entry) in &files {
        let found = describe(&path.join(name))
            .map_err(|source| damaged(CheckpointDamage::Unreadable { file: name.clone(), source }))?;
        if found.size != entry.size {
            let (found, expected) = (found.size, entry.size);
            return Err(damaged(CheckpointDamage::Size { file: name.clone(), found, expected }));
        }
        if found.sha256 != entry.sha256 {
            return Err(damaged(CheckpointDamage::Checksum { file: name.clone() }));
        }
    }
    Ok(())
}

fn describe(path: &Path) -> std::io::Result<FileEntry> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 16];
    let mut size = 0u64;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        size += n as u64;
        hash.update(&buffer[..n]);
    }
    let mut sha256 = String::with_capacity(64);
    for byte in hash.finalize() {
        for digit in [byte >> 4, byte & 15] {
            sha256.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    Ok(FileEntry { size, sha256 })
}

/// What lies below a folder: relative paths, in order, with `/` between names.
#[derive(Debug, Default)]
struct Below {
    files: Vec<String>,
    folders: Vec<String>,
}

impl Below {
    fn read(root: &Path) -> Result<Self, StoreError> {
        let mut below = Self::default();
        below.walk(root, "").map_err(|source| StoreError::io("read", root, source))?;
        below.files.sort();
        below.folders.sort();
        Ok(below)
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
