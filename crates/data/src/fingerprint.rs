//! Fingerprints of data files, by which a resumed run notices that its data has changed.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files::local_files;
use crate::{DataError, DataPath, DataSettings, Source};

/// Bytes that are read at once.
const BLOCK: usize = 1 << 20;

/// Length and content hash of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileFingerprint {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
}

impl FileFingerprint {
    /// Reads a file.
    pub fn of(path: &Path) -> Result<Self, DataError> {
        let io = |source| DataError::Io { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(io)?;
        let (mut digest, mut block, mut bytes) = (Sha256::new(), vec![0; BLOCK], 0);
        loop {
            let read = file.read(&mut block).map_err(io)?;
            if read == 0 {
                break;
            }
            digest.update(&block[..read]);
            bytes += read as u64;
        }
        let sha256 = digest.finalize().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        Ok(Self { path: std::path::absolute(path).map_err(io)?, bytes, sha256 })
    }

    /// True if both have the same content, wherever they are.
    fn has_content_of(&self, other: &Self) -> bool {
        (self.bytes, &self.sha256) == (other.bytes, &other.sha256)
    }
}

/// A difference between the data that a run started with and the present data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataChange {
    /// The content of a file differs.
    #[error(
        "{} has changed since the run started: it had {was} bytes with SHA-256 {was_sha256:.16}…, now it has {is} bytes with \
         {is_sha256:.16}…",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// Recorded length.
        was: u64,
        /// Present length.
        is: u64,
        /// Recorded hash.
        was_sha256: String,
        /// Present hash.
        is_sha256: String,
    },
    /// A file is gone.
    #[error("{} was part of the data when the run started and is not any more", path.display())]
    Removed {
        /// The file.
        path: PathBuf,
    },
    /// A file is new.
    #[error("{} was not part of the data when the run started", path.display())]
    Added {
        /// The file.
        path: PathBuf,
    },
}

impl DataSettings {
    /// Fingerprints of the local data files in the order in which they are read. Generators have none; data sets of a hub
    /// are identified by their commit.
    pub fn fingerprints(&self) -> Result<Vec<FileFingerprint>, DataError> {
        let mut found = Vec::new();
        if let Source::Mixture(sources) = &self.source {
            for source in sources {
                found.extend(source.data.fingerprints()?);
            }
        }
        let Source::Files(files) = &self.source else { return Ok(found) };
        for path in std::iter::once(&files.path).chain(&files.eval_path).flat_map(|paths| &paths.0) {
            let DataPath::Local(path) = path else { continue };
            for file in local_files(path)? {
                found.push(FileFingerprint::of(&file)?);
            }
        }
        Ok(found)
    }

    /// Makes the paths of data files absolute, so that they do not depend on the working directory.
    pub fn make_absolute(&mut self) -> Result<(), DataError> {
        if let Source::Mixture(sources) = &mut self.source {
            sources.iter_mut().try_for_each(|source| source.data.make_absolute())?;
        }
        let Source::Files(files) = &mut self.source else { return Ok(()) };
        let paths = std::iter::once(&mut files.path).chain(&mut files.eval_path);
        for path in paths.flat_map(|paths| &mut paths.0) {
            let DataPath::Local(path) = path else { continue };
            let absolute = std::path::absolute(&*path);
            *path = absolute.map_err(|source| DataError::Io { path: path.clone(), source })?;
        }
        Ok(())
    }
}

/// Returns the first difference between recorded and present files. Files that were moved without a change of content or
/// order are the same data.
pub fn first_change(recorded: &[FileFingerprint], present: &[FileFingerprint]) -> Option<DataChange> {
    for at in 0..recorded.len().max(present.len()) {
        match (recorded.get(at), present.get(at)) {
            (Some(was), Some(is)) if was.has_content_of(is) => {}
            (Some(was), Some(is)) if was.path == is.path => {
                return Some(DataChange::Content {
                    path: is.path.clone(),
                    was: was.bytes,
                    is: is.bytes,
                    was_sha256: was.sha256.clone(),
                    is_sha256: is.sha256.clone(),
                });
            }
            (Some(was), is) => {
                let is_kept = present.iter().any(|file| file.path == was.path);
                return Some(match is {
                    Some(is) if is_kept => DataChange::Added { path: is.path.clone() },
                    _ => DataChange::Removed { path: was.path.clone() },
                });
            }
            (None, Some(is)) => return Some(DataChange::Added { path: is.path.clone() }),
            (None, None) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileSettings;

    fn fingerprints(folder: &Path) -> Vec<FileFingerprint> {
        DataSettings::from(Source::Files(FileSettings::new(folder))).fingerprints().unwrap()
    }

    #[test]
    fn changes_name_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let message = |was: &[FileFingerprint]| {
            first_change(was, &fingerprints(folder.path())).map(|change| change.to_string())
        };
        write("a.jsonl", "one");
        write("b.jsonl", "two");
        let was = fingerprints(folder.path());
        assert_eq!(message(&was), None);
        // SHA-256 of "one", from coreutils.
        assert_eq!(was[0].sha256, "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
        write("b.jsonl", "owt");
        let text = message(&was).unwrap();
        assert!(text.contains("b.jsonl has changed") && text.contains("had 3 bytes"), "{text}");
        write("b.jsonl", "two");
        write("aa.jsonl", "new");
        assert!(message(&was).unwrap().contains("aa.jsonl was not part"), "{:?}", message(&was));
        std::fs::remove_file(folder.path().join("aa.jsonl")).unwrap();
        std::fs::remove_file(folder.path().join("a.jsonl")).unwrap();
        assert!(message(&was).unwrap().contains("a.jsonl was part"), "{:?}", message(&was));
    }

    #[test]
    fn moved_files_are_the_same_data() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for folder in [&from, &to] {
            std::fs::write(folder.path().join("a.jsonl"), "one").unwrap();
        }
        assert_eq!(first_change(&fingerprints(from.path()), &fingerprints(to.path())), None);
    }
}
