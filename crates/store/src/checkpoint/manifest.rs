//! The manifest of a checkpoint: format version, and size and checksum of every file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{CheckpointDamage, StoreError};

/// Version of the checkpoint format that is written, and the only one that is read.
pub const FORMAT_VERSION: u32 = 3;

/// Name of the manifest in a checkpoint.
pub(super) const FILE: &str = "MANIFEST";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) size: u64,
    sha256: String,
}

impl FileEntry {
    /// Reads size and checksum of a file.
    pub(super) fn read(path: &Path) -> std::io::Result<Self> {
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
        Ok(Self { size, sha256 })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format_version: u32,
    pub(super) files: BTreeMap<String, FileEntry>,
    /// CRC-32C of the fields above, so that a damaged version is not mistaken for another format. Format 1 had none.
    #[serde(default)]
    pub(super) checksum: Option<u32>,
}

impl Manifest {
    pub(super) fn new(files: BTreeMap<String, FileEntry>) -> Self {
        let checksum = Some(Self::checksum(FORMAT_VERSION, &files));
        Self { format_version: FORMAT_VERSION, files, checksum }
    }

    /// Reads the manifest of a checkpoint of this format.
    pub(super) fn read(checkpoint: &Path) -> Result<Self, StoreError> {
        let damaged = |damage| StoreError::damaged_checkpoint(checkpoint, damage);
        let file = || FILE.to_owned();
        let bytes = fs::read(checkpoint.join(FILE))
            .map_err(|source| damaged(CheckpointDamage::Unreadable { file: file(), source }))?;
        let manifest: Self = serde_json::from_slice(&bytes)
            .map_err(|source| damaged(CheckpointDamage::Invalid { file: file(), source }))?;
        let found = manifest.format_version;
        let expected = Self::checksum(found, &manifest.files);
        if manifest.checksum.map_or(found != 1, |checksum| checksum != expected) {
            return Err(damaged(CheckpointDamage::Manifest));
        }
        if found != FORMAT_VERSION {
            let path = checkpoint.to_owned();
            return Err(StoreError::CheckpointFormat { path, found, supported: FORMAT_VERSION });
        }
        Ok(manifest)
    }

    /// Compares a file with its entry.
    fn check(checkpoint: &Path, name: &str, entry: &FileEntry) -> Result<(), StoreError> {
        let damaged = |damage| StoreError::damaged_checkpoint(checkpoint, damage);
        let file = || name.to_owned();
        let found = FileEntry::read(&checkpoint.join(name))
            .map_err(|source| damaged(CheckpointDamage::Unreadable { file: file(), source }))?;
        if found.size != entry.size {
            let (found, expected) = (found.size, entry.size);
            return Err(damaged(CheckpointDamage::Size { file: file(), found, expected }));
        }
        if found.sha256 != entry.sha256 {
            return Err(damaged(CheckpointDamage::Checksum { file: file() }));
        }
        Ok(())
    }

    pub(super) fn checksum(format_version: u32, files: &BTreeMap<String, FileEntry>) -> u32 {
        files.iter().fold(crc32c::crc32c(&format_version.to_le_bytes()), |sum, (name, entry)| {
            crc32c::crc32c_append(sum, format!("\n{name} {} {}", entry.size, entry.sha256).as_bytes())
        })
    }
}

/// Checks every file of a checkpoint against its manifest.
pub fn verify(checkpoint: &Path) -> Result<(), StoreError> {
    let manifest = Manifest::read(checkpoint)?;
    for (name, entry) in &manifest.files {
        Manifest::check(checkpoint, name, entry)?;
    }
    Ok(())
}

/// The first file in the manifest of `folder` that `other` lacks or has with other content. `None` if there is none, or
/// if the manifest cannot be read.
pub fn first_difference(folder: &Path, other: &Path) -> Option<String> {
    let manifest = Manifest::read(folder).ok()?;
    let differs = |(name, entry): &(&String, &FileEntry)| {
        FileEntry::read(&other.join(name)).map_or(true, |found| found != **entry)
    };
    manifest.files.iter().find(differs).map(|(name, _)| name.clone())
}
