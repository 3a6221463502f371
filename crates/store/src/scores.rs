//! Log-probabilities of a reference, kept by content between runs.
//!
//! A folder has files of records: the key, the number of values, the values and a checksum. Files are written whole and never
//! changed, so that runs can share a folder. A damaged record is left out, and its file is replaced by the others.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{StoreError, disk};

/// Name of the file operations.
const AREA: &str = "scores";
const EXTENSION: &str = "scores";
/// Values after which new records are written.
const FULL: usize = 1 << 20;
const KEY: usize = 32;
const WORD: usize = 4;

/// Digest of everything that some scores depend on.
pub type ScoreKey = [u8; KEY];

/// Scores by the digest of what they depend on.
#[derive(Debug)]
pub struct ScoreCache {
    folder: PathBuf,
    scores: HashMap<ScoreKey, Vec<f32>>,
    /// Records that are not written yet, and the number of their values.
    unwritten: Vec<u8>,
    values: usize,
    /// Files with damaged records.
    damaged: Vec<PathBuf>,
}

impl ScoreCache {
    /// Opens a folder, which is created if it does not exist.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        disk::create_folder(AREA, folder)?;
        let mut cache = Self {
            folder: folder.to_owned(),
            scores: HashMap::new(),
            unwritten: Vec::new(),
            values: 0,
            damaged: Vec::new(),
        };
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::io("read", &path, source)
        };
        let entries = fs::read_dir(folder).map_err(io(folder))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(io(folder))?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                files.push(path);
            }
        }
        files.sort_unstable();
        for path in files {
            let bytes = fs::read(&path).map_err(io(&path))?;
            cache.read(path, &bytes);
        }
        Ok(cache)
    }

    /// Files with damaged records. They are removed once their other records are written again.
    pub fn damaged(&self) -> &[PathBuf] {
        &self.damaged
    }

    /// The scores of a key.
    pub fn get(&self, key: &ScoreKey) -> Option<&[f32]> {
        self.scores.get(key).map(Vec::as_slice)
    }

    /// Adds scores. They are durable after [`flush`](Self::flush) at the latest.
    pub fn insert(&mut self, key: ScoreKey, scores: Vec<f32>) -> Result<(), StoreError> {
        self.append(&key, &scores);
        self.scores.insert(key, scores);
        if self.values >= FULL { self.flush() } else { Ok(()) }
    }

    /// Writes what was added, and removes damaged files.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        if !self.unwritten.is_empty() {
            let digest = Sha256::digest(&self.unwritten);
            let first: [u8; 16] = digest.first_chunk().copied().unwrap_or_default();
            let name = format!("{:024x}", u128::from_be_bytes(first) >> 32);
            let path = self.folder.join(name).with_extension(EXTENSION);
            disk::write_atomically(AREA, &path, &self.unwritten)?;
            self.unwritten.clear();
            self.values = 0;
            self.damaged.retain(|damaged| *damaged != path);
        }
        for path in self.damaged.drain(..) {
            disk::remove_file(AREA, &path)?;
        }
        Ok(())
    }

    fn append(&mut self, key: &ScoreKey, scores: &[f32]) {
        let start = self.unwritten.len();
        self.unwritten.extend_from_slice(key);
        self.unwritten.extend_from_slice(&(scores.len() as u32).to_le_bytes());
        self.unwritten.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
        let checksum = crc32c::crc32c(&self.unwritten[start..]);
        self.unwritten.extend_from_slice(&checksum.to_le_bytes());
        self.values += scores.len();
    }

    /// Reads the records of a file. Those of a damaged one are written again with the next.
    fn read(&mut self, path: PathBuf, bytes: &[u8]) {
        let (records, is_whole) = records(bytes);
        for (key, scores) in records {
            if !is_whole {
                self.append(&key, &scores);
            }
            self.scores.insert(key, scores);
        }
        if !is_whole {
            self.damaged.push(path);
        }
    }
}

/// The intact records of a file, and whether these are all of it.
fn records(bytes: &[u8]) -> (Vec<(ScoreKey, Vec<f32>)>, bool) {
    let (mut found, mut is_whole, mut rest) = (Vec::new(), true, bytes);
    while !rest.is_empty() {
        let Some((body, after)) = split_record(rest) else { return (found, false) };
        let (content, checksum) = body.split_at(body.len() - WORD);
        if crc32c::crc32c(content).to_le_bytes() == checksum {
            let mut key = [0; KEY];
            key.copy_from_slice(&content[..KEY]);
            let scores =
                content[KEY + WORD..].as_chunks::<WORD>().0.iter().map(|word| f32::from_le_bytes(*word));
            found.push((key, scores.collect()));
        } else {
            is_whole = false;
        }
        rest = after;
    }
    (found, is_whole)
}

/// The first record by the length that it claims, and what follows it.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let words = bytes.get(KEY..)?.first_chunk::<WORD>()?;
    let values = u32::from_le_bytes(*words) as usize;
    bytes.split_at_checked(KEY + WORD + values.checked_mul(WORD)? + WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> ScoreKey {
        [number; KEY]
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn scores_outlive_their_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = ScoreCache::open(&folder.path().join("new")).unwrap();
        cache.insert(key(1), vec![-0.5, f32::MIN_POSITIVE]).unwrap();
        cache.flush().unwrap();
        cache.insert(key(2), vec![]).unwrap();
        cache.flush().unwrap();
        cache.flush().unwrap();
        assert_eq!(files(&folder.path().join("new")).len(), 2);
        let again = ScoreCache::open(&folder.path().join("new")).unwrap();
        assert_eq!(again.get(&key(1)), Some(&[-0.5, f32::MIN_POSITIVE][..]));
        assert_eq!(again.get(&key(2)), Some(&[][..]));
        assert_eq!(again.get(&key(3)), None);
        assert!(again.damaged().is_empty());
    }

    /// Each byte of a file is damaged once, and the file ends at each byte.
    #[test]
    fn damaged_records_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = ScoreCache::open(folder.path()).unwrap();
        for number in 0..3 {
            cache.insert(key(number), vec![f32::from(number); 2]).unwrap();
        }
        cache.flush().unwrap();
        let [path] = &files(folder.path())[..] else { panic!("one file") };
        let whole = fs::read(path).unwrap();
        let check = |bytes: &[u8]| {
            fs::write(path, bytes).unwrap();
            let mut damaged = ScoreCache::open(folder.path()).unwrap();
            assert_eq!(damaged.damaged(), std::slice::from_ref(path));
            let intact: Vec<u8> = (0..3).filter(|&number| damaged.get(&key(number)).is_some()).collect();
            assert!(intact.len() < 3);
            for &number in &intact {
                assert_eq!(damaged.get(&key(number)), Some(&[f32::from(number); 2][..]));
            }
            damaged.flush().unwrap();
            let repaired = ScoreCache::open(folder.path()).unwrap();
            assert!(repaired.damaged().is_empty());
            assert_eq!(repaired.scores.len(), damaged.scores.len());
            for file in files(folder.path()) {
                fs::remove_file(file).unwrap();
            }
            intact.len()
        };
        let mut kept = 0;
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x40;
            kept = kept.max(check(&bytes));
            if place % (whole.len() / 3) != 0 {
                check(&whole[..place]);
            }
        }
        assert_eq!(kept, 2, "the others of a file are kept");
    }

    #[test]
    fn many_scores_are_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = ScoreCache::open(folder.path()).unwrap();
        cache.insert(key(1), vec![0.25; FULL]).unwrap();
        assert_eq!(files(folder.path()).len(), 1);
    }
}
