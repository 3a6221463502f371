//! The folder of a server's checkpoints and the paths that name them.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rloom_model::{LoraConfig, Model};
use rloom_store::checkpoint::{verify, write_folder};
use rloom_store::disk;

use crate::error::TrainApiError;
use crate::problem::Failed;

const SCHEME: &str = "tinker://";
/// Largest name of a run or checkpoint.
const MAX_NAME: usize = 128;

/// Kind of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Weights and the state of the optimizer.
    Training,
    /// Weights to sample from.
    Sampler,
}

impl Kind {
    fn folder(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
        }
    }
}

/// Stored weights: `tinker://RUN/weights/NAME` or `tinker://RUN/sampler_weights/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckpointPath {
    run: String,
    pub(crate) kind: Kind,
    name: String,
}

impl CheckpointPath {
    /// The path of a model's checkpoint with this name.
    pub(crate) fn new(model: &str, kind: Kind, name: &str) -> Result<Self, Failed> {
        let path = Self { run: model.to_owned(), kind, name: name.to_owned() };
        if is_name(&path.run) && is_name(&path.name) {
            Ok(path)
        } else {
            Err(Failed::user(format!(
                "a checkpoint needs a name of 1 to {MAX_NAME} letters, digits, `-`, `_` and `.` that does not begin with `.`"
            )))
        }
    }

    /// Reads a path. It cannot leave the folder of the checkpoints: its parts are names.
    pub(crate) fn parse(text: &str) -> Result<Self, Failed> {
        let invalid = || {
            let text: String = text.chars().take(200).collect();
            Failed::user(format!(
                "`{text}` is no path of this server: it must be {SCHEME}RUN/weights/NAME or {SCHEME}RUN/sampler_weights/NAME"
            ))
        };
        let mut parts = text.strip_prefix(SCHEME).ok_or_else(invalid)?.split('/');
        let (run, kind, name, end) = (parts.next(), parts.next(), parts.next(), parts.next());
        let kind = match kind {
            Some("weights") => Kind::Training,
            Some("sampler_weights") => Kind::Sampler,
            _ => return Err(invalid()),
        };
        match (run, name, end) {
            (Some(run), Some(name), None) => Self::new(run, kind, name).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }

    /// The path of a stored checkpoint, from the names of its folders.
    fn stored(run: &str, kind: Kind, name: &str) -> Option<Self> {
        Self::new(&model_of_folder(run), kind, name).ok()
    }

    /// Kind and name as a text.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.kind.folder(), self.name)
    }

    /// The path as a text.
    pub(crate) fn text(&self) -> String {
        format!("{SCHEME}{}/{}/{}", self.run, self.kind.folder(), self.name)
    }
}

/// True for a text that is the name of a file or folder, also with the colons of a model's identifier.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_allowed)
}

/// The identifier of the model that a folder belongs to: `SESSION:train:NUMBER`, with colons that not all file systems allow.
fn model_of_folder(name: &str) -> String {
    let model = name.rsplit_once("-train-").filter(|(_, number)| number.parse::<u64>().is_ok());
    model.map_or_else(|| name.to_owned(), |(session, number)| format!("{session}:train:{number}"))
}

/// A checkpoint of the folder.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) path: CheckpointPath,
    pub(crate) time: SystemTime,
    pub(crate) bytes: u64,
}

/// The folder of a server's checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    root: PathBuf,
}

impl Checkpoints {
    /// Creates the folder if there is none.
    pub(crate) fn open(root: PathBuf) -> Result<Self, TrainApiError> {
        match std::fs::create_dir_all(&root) {
            Ok(()) => Ok(Self { root }),
            Err(source) => Err(TrainApiError::Folder { path: root, source }),
        }
    }

    fn parent(&self, path: &CheckpointPath) -> PathBuf {
        // Not all file systems allow colons.
        self.root.join(path.run.replace(':', "-")).join(path.kind.folder())
    }

    /// Folder of a checkpoint.
    fn folder(&self, path: &CheckpointPath) -> PathBuf {
        self.parent(path).join(path.name.replace(':', "-"))
    }

    /// Writes a checkpoint, which appears under its name when it is complete.
    pub(crate) fn write(
        &self,
        path: &CheckpointPath,
        overwrite: bool,
        fill: impl FnOnce(&Path) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let folder = self.folder(path);
        if folder.exists() && !overwrite {
            return Err(Failed::user(format!(
                "{} exists: choose another name, or overwrite it",
                path.text()
            )));
        }
        let parent = self.parent(path);
        disk::create_folder("training_api", &parent)?;
        let name = path.name.replace(':', "-");
        write_folder("training_api", &parent, &name, fill).map(drop)
    }

    /// The folder of a complete checkpoint. Checks its files.
    pub(crate) fn read(&self, path: &CheckpointPath) -> Result<PathBuf, Failed> {
        let folder = self.folder(path);
        if !folder.is_dir() {
            return Err(Failed::user(format!("{} does not exist", path.text())));
        }
        verify(&folder)?;
        Ok(folder)
    }

    /// The complete checkpoints of a run, or of all runs, the newest first.
    pub(crate) fn list(&self, run: Option<&str>) -> Result<Vec<Stored>, Failed> {
        let runs = match run {
            Some(run) if is_name(run) => vec![run.replace(':', "-")],
            Some(_) => Vec::new(),
            None => names(&self.root)?,
        };
        let mut found = Vec::new();
        for run in runs {
            for kind in [Kind::Training, Kind::Sampler] {
                let parent = self.root.join(&run).join(kind.folder());
                for name in names(&parent)? {
                    // One may be deleted meanwhile.
                    let Ok(metadata) = std::fs::metadata(parent.join(&name)) else { continue };
                    let Some(path) = CheckpointPath::stored(&run, kind, &name) else { continue };
                    let time = metadata.modified().unwrap_or(UNIX_EPOCH);
                    found.push(Stored { path, time, bytes: size(&parent.join(&name)) });
                }
            }
        }
        found.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.path.text().cmp(&b.path.text())));
        Ok(found)
    }

    /// Deletes a checkpoint; false if there is none. It is gone at once, also if its files are removed later.
    pub(crate) fn delete(&self, path: &CheckpointPath) -> Result<bool, Failed> {
        let folder = self.folder(path);
        let removed = self.parent(path).join(format!(".deleted-{}", path.name.replace(':', "-")));
        let failed =
            |error: std::io::Error| Failed::server(format!("cannot delete {}: {error}", path.text()));
        // Left by a server that was killed while it deleted one of this name.
        if removed.exists() {
            std::fs::remove_dir_all(&removed).map_err(failed)?;
        }
        match std::fs::rename(&folder, &removed) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed(error)),
        }
        std::fs::remove_dir_all(&removed).map_err(failed)?;
        Ok(true)
    }

    /// Shape of a checkpoint's adapter; `None` if it has all weights.
    pub(crate) fn lora(&self, path: &CheckpointPath) -> Result<Option<LoraConfig>, Failed> {
        Model::lora_of(&self.folder(path)).map_err(|error| Failed::server(error.to_string()))
    }

    /// True if there is such a checkpoint.
    pub(crate) fn exists(&self, path: &CheckpointPath) -> bool {
        self.folder(path).is_dir()
    }
}

/// Names of the folders in a folder, which may not exist. Hidden ones are incomplete or deleted.
fn names(folder: &Path) -> Result<Vec<String>, Failed> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failed::server(format!("cannot list {}: {error}", folder.display()))),
    };
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| !name.starts_with('.')).collect())
}

/// Bytes of the files of a folder.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_written() {
        for kind in [Kind::Training, Kind::Sampler] {
            let path = CheckpointPath::new("0af:train:3", kind, "step-1.final").unwrap();
            assert_eq!(CheckpointPath::parse(&path.text()), Ok(path));
        }
    }

    #[test]
    fn paths_cannot_leave_the_folder() {
        for text in [
            "",
            "weights",
            "/etc/passwd",
            "file:///etc/passwd",
            "tinker://",
            "tinker://a",
            "tinker://a/weights",
            "tinker://a/weights/",
            "tinker:///weights/b",
            "tinker://a/other/b",
            "tinker://a/weights/b/c",
            "tinker://../weights/b",
            "tinker://a/weights/..",
            "tinker://a/weights/.partial-b",
            "tinker://a/weights/../../../etc",
            "tinker://a/weights/b\0",
            "tinker://a/weights/b\\..\\c",
            "tinker://a/weights/%2e%2e",
            "tinker://a/weights/ü",
        ] {
            assert!(CheckpointPath::parse(text).is_err(), "{text}");
        }
        assert!(CheckpointPath::parse(&format!("tinker://a/weights/{}", "b".repeat(129))).is_err());
        assert!(CheckpointPath::new("a", Kind::Training, "../b").is_err());
    }

    #[test]
    fn checkpoints_are_whole_and_only_overwritten_on_demand() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path().join("new")).unwrap();
        let path = CheckpointPath::new("m:train:0", Kind::Training, "a").unwrap();
        assert!(checkpoints.read(&path).unwrap_err().message.contains("does not exist"));
        let write = |text: &'static str, overwrite| {
            checkpoints.write(&path, overwrite, |folder| {
                std::fs::write(folder.join("weights"), text)
                    .map_err(|error| Failed::server(error.to_string()))
            })
        };
        write("one", false).unwrap();
        assert!(write("two", false).unwrap_err().is_of_user);
        write("two", true).unwrap();
        let read = checkpoints.read(&path).unwrap();
        assert_eq!(std::fs::read_to_string(read.join("weights")).unwrap(), "two");
        let failing = checkpoints.write(&path, true, |_| Err(Failed::server("full")));
        assert!(failing.is_err() && checkpoints.exists(&path));
        // Damage is found.
        std::fs::write(read.join("weights"), "2wo").unwrap();
        assert!(checkpoints.read(&path).is_err());
    }
}
