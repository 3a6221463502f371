//! Checkpoints: whole or not at all, and checked before they are believed.
//!
//! A checkpoint is written beside its place, synced, then renamed. `MANIFEST` (JSON) holds the format version and
//! size and SHA-256 of every file; a checkpoint that does not match it is refused by name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::RunError;
use crate::directory::{sync_directory, write_atomically};

/// The layout that this program writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;

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
#[derive(Debug)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// The checkpoints in `directory`. What an interrupted write left there is removed.
    pub fn open(directory: PathBuf) -> Result<Self, RunError> {
        let checkpoints = Self { directory };
        for folder in checkpoints.folders()? {
            if folder.starts_with(PARTIAL) {
                let path = checkpoints.directory.join(folder);
                fs::remove_dir_all(&path).map_err(|source| RunError::io("remove", &path, source))?;
            }
        }
        Ok(checkpoints)
    }

    fn folders(&self) -> Result<Vec<String>, RunError> {
        let read = |source| RunError::io("read", &self.directory, source);
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
    pub fn write(
        &self,
        name: &CheckpointName,
        fill: impl FnOnce(&Path) -> Result<(), RunError>,
    ) -> Result<(PathBuf, u64), RunError> {
        let partial = self.directory.join(format!("{PARTIAL}{}", name.folder()));
        let last = self.directory.join(name.folder());
        let written = Self::write_partial(&partial, name, fill).and_then(|bytes| {
            if last.exists() {
                // The same step saved again after a resume from an older checkpoint.
                fs::remove_dir_all(&last).map_err(|source| RunError::io("remove", &last, source))?;
            }
            fs::rename(&partial, &last).map_err(|source| RunError::io("rename", &partial, source))?;
            sync_directory(&self.directory)?;
            Ok(bytes)
        });
        if written.is_err() {
            // Best effort: the error that matters is the first one, and a full disk wants its space back.
            let _ = fs::remove_dir_all(&partial);
        }
        written.map(|bytes| (last, bytes))
    }

    fn write_partial(
        partial: &Path,
        name: &CheckpointName,
        fill: impl FnOnce(&Path) -> Result<(), RunError>,
    ) -> Result<u64, RunError> {
        if partial.exists() {
            fs::remove_dir_all(partial).map_err(|source| RunError::io("remove", partial, source))?;
        }
        fs::create_dir_all(partial).map_err(|source| RunError::io("create", partial, source))?;
        fill(partial)?;
        let named = serde_json::to_vec_pretty(name)
            .map_err(|e| RunError::io("encode", partial, std::io::Error::other(e)))?;
        let trainer = partial.join("trainer");
        fs::create_dir_all(&trainer).map_err(|source| RunError::io("create", &trainer, source))?;
        write_atomically(&trainer.join("name.json"), &named)?;
        let mut files = BTreeMap::new();
        for relative in files_below(partial)? {
            let path = partial.join(&relative);
            let entry = describe(&path)?;
            File::open(&path)
                .and_then(|f| f.sync_all())
                .map_err(|source| RunError::io("sync", &path, source))?;
            files.insert(relative, entry);
        }
        let bytes = files.values().map(|f| f.size).sum();
        let manifest = serde_json::to_vec_pretty(&Manifest { format_version: FORMAT_VERSION, files })
            .map_err(|e| RunError::io("encode", partial, std::io::Error::other(e)))?;
        write_atomically(&partial.join("MANIFEST"), &manifest)?;
        sync_directory(&trainer)?;
        sync_directory(partial)?;
        Ok(bytes)
    }

    /// Every checkpoint in the order of training, oldest first. A folder whose name file cannot be read is listed
    /// among the damaged ones.
    pub fn list(&self) -> Result<(Vec<Found>, Vec<RunError>), RunError> {
        let mut sound = Vec::new();
        let mut damaged = Vec::new();
        for folder in self.folders()? {
            let path = self.directory.join(&folder);
            match read_name(&path) {
                Ok(name) => sound.push((name, path)),
                Err(error) => damaged.push(error),
            }
        }
        sound.sort();
        Ok((sound, damaged))
    }

    /// The newest checkpoint that is whole, and why newer ones are not.
    pub fn newest_sound(&self) -> Result<(Option<Found>, Vec<RunError>), RunError> {
        let (mut list, mut damaged) = self.list()?;
        while let Some((name, path)) = list.pop() {
            match verify(&path) {
                Ok(()) => return Ok((Some((name, path)), damaged)),
                Err(error) => damaged.push(error),
            }
        }
        Ok((None, damaged))
    }

    /// Removes what need not be kept: of each stage the last `keep_last` stay, every step that `keep_every` divides
    /// stays (0: none for that reason), and so do the last one of each finished stage and `best`.
    pub fn prune(&self, keep_last: usize, keep_every: u64, best: Option<&Path>) -> Result<(), RunError> {
        let (list, _) = self.list()?;
        for (i, (name, path)) in list.iter().enumerate() {
            let later = list[i + 1..].iter().filter(|(n, _)| n.stage == name.stage).count();
            let last_of_finished_stage = later == 0;
            let kept = later < keep_last.max(1)
                || last_of_finished_stage
                || (keep_every > 0 && name.step.is_multiple_of(keep_every))
                || best == Some(path.as_path());
            if !kept {
                // Renamed first, so that a death in the middle leaves no half-removed checkpoint under its name.
                let partial = self.directory.join(format!("{PARTIAL}{}", name.folder()));
                fs::rename(path, &partial).map_err(|source| RunError::io("rename", path, source))?;
                fs::remove_dir_all(&partial).map_err(|source| RunError::io("remove", &partial, source))?;
            }
        }
        Ok(())
    }

    /// Points `link` (`latest`, `best`) at a checkpoint, where the file system has symbolic links.
    pub fn point(&self, link: &str, checkpoint: &Path) -> Result<(), RunError> {
        #[cfg(unix)]
        {
            let Some(target) = checkpoint.file_name() else {
                return Ok(());
            };
            let partial = self.directory.join(format!("{link}.partial"));
            let _ = fs::remove_file(&partial);
            std::os::unix::fs::symlink(target, &partial)
                .map_err(|source| RunError::io("link", &partial, source))?;
            let path = self.directory.join(link);
            fs::rename(&partial, &path).map_err(|source| RunError::io("rename", &path, source))?;
        }
        #[cfg(not(unix))]
        let _ = (link, checkpoint);
        Ok(())
    }
}

fn read_name(path: &Path) -> Result<CheckpointName, RunError> {
    let damaged = |reason: String| RunError::CheckpointDamaged { path: path.to_owned(), reason };
    let bytes = fs::read(path.join("trainer/name.json"))
        .map_err(|e| damaged(format!("trainer/name.json cannot be read: {e}")))?;
    serde_json::from_slice(&bytes).map_err(|e| damaged(format!("trainer/name.json: {e}")))
}

/// Checks every file of a checkpoint against its manifest.
pub fn verify(path: &Path) -> Result<(), RunError> {
    let damaged = |reason: String| RunError::CheckpointDamaged { path: path.to_owned(), reason };
    let bytes =
        fs::read(path.join("MANIFEST")).map_err(|e| damaged(format!("MANIFEST cannot be read: {e}")))?;
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| damaged(format!("MANIFEST: {e}")))?;
    if manifest.format_version != FORMAT_VERSION {
        return Err(damaged(format!(
            "it has format version {}, this program reads {FORMAT_VERSION}",
            manifest.format_version
        )));
    }
    for (name, entry) in &manifest.files {
        let file = path.join(name);
        let found = describe(&file).map_err(|e| damaged(e.to_string()))?;
        if found.size != entry.size {
            return Err(damaged(format!("{name} has {} bytes, not {}", found.size, entry.size)));
        }
        if found.sha256 != entry.sha256 {
            return Err(damaged(format!("{name} does not match its checksum")));
        }
    }
    Ok(())
}

fn describe(path: &Path) -> Result<FileEntry, RunError> {
    let read = |source| RunError::io("read", path, source);
    let mut file = File::open(path).map_err(read)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut size = 0u64;
    loop {
        let n = file.read(&mut buffer).map_err(read)?;
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

/// Relative paths of the files below a folder, in order, with `/` between names.
fn files_below(root: &Path) -> Result<Vec<String>, RunError> {
    fn walk(directory: &Path, prefix: &str, out: &mut Vec<String>) -> std::io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                walk(&entry.path(), &format!("{name}/"), out)?;
            } else {
                out.push(name);
            }
        }
        Ok(())
    }
    let mut out = Vec::new();
    walk(root, "", &mut out).map_err(|source| RunError::io("read", root, source))?;
    out.sort();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(stage: u32, step: u64) -> CheckpointName {
        CheckpointName { stage, step, stage_name: format!("s{stage}") }
    }

    fn store(directory: &Path, stage: u32, step: u64) -> PathBuf {
        let checkpoints = Checkpoints::open(directory.to_owned()).unwrap();
        let fill = |folder: &Path| {
            fs::create_dir_all(folder.join("trainer")).unwrap();
            fs::write(folder.join("trainer/state"), [stage as u8, step as u8]).unwrap();
            fs::write(folder.join("model"), vec![7u8; 1000]).unwrap();
            Ok(())
        };
        checkpoints.write(&name(stage, step), fill).unwrap().0
    }

    #[test]
    fn any_damage_is_noticed_and_the_last_good_one_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let good = store(directory.path(), 0, 5);
        let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
        for (file, damage) in
            [("model", "flip"), ("trainer/state", "truncate"), ("model", "remove"), ("MANIFEST", "flip")]
        {
            let newest = store(directory.path(), 1, 2);
            let path = newest.join(file);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "flip" => bytes[0] ^= 1,
                "truncate" => bytes.truncate(1),
                _ => {}
            }
            fs::write(&path, bytes).unwrap();
            if damage == "remove" {
                fs::remove_file(&path).unwrap();
            }
            let (found, refused) = checkpoints.newest_sound().unwrap();
            assert_eq!(found.unwrap().1, good, "{damage} {file}");
            assert!(refused[0].to_string().contains("s1-step-000002"), "{}", refused[0]);
        }
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
        let fail = |folder: &Path| {
            fs::write(folder.join("model"), [1]).unwrap();
            Err(RunError::Setup("no".into()))
        };
        assert!(checkpoints.write(&name(0, 1), fail).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn pruning_keeps_the_last_the_marked_and_the_best() {
        let directory = tempfile::tempdir().unwrap();
        let best = store(directory.path(), 1, 3);
        store(directory.path(), 0, 7);
        for step in [1, 2, 10, 11, 12] {
            store(directory.path(), 1, step);
        }
        let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
        checkpoints.prune(2, 5, Some(&best)).unwrap();
        let kept: Vec<String> = checkpoints.list().unwrap().0.iter().map(|(n, _)| n.folder()).collect();
        assert_eq!(
            kept,
            ["s0-step-000007", "s1-step-000003", "s1-step-000010", "s1-step-000011", "s1-step-000012"]
        );
    }
}
