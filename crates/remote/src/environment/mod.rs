//! Python environments of the engines: their packages, their place, their installation and their condition.

mod describe;
mod install;
mod pins;
mod versions;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use describe::{DescribeError, Description, describe, reach};
pub use install::{InstallError, InstallOptions, Outcome, install};
pub use versions::TestedVersions;

/// File of a finished environment, which describes it. It is written last.
const MARKER: &str = "rloom-environment.json";

/// Engine that needs a Python environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentKind {
    /// PyTorch ranks.
    Torch,
    /// vLLM servers.
    Vllm,
    /// `SGLang` servers.
    Sglang,
}

impl EnvironmentKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Torch, Self::Vllm, Self::Sglang];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// Packages that it needs, in the versions that were tested.
    pub fn tested(self) -> Vec<TestedVersions> {
        match self {
            Self::Torch => pins::of_ranks().filter_map(pins::Pin::tested).collect(),
            Self::Vllm => vec![crate::vllm::VERSIONS],
            Self::Sglang => vec![crate::sglang::VERSIONS],
        }
    }

    /// Modules that its processes import.
    fn imports(self) -> &'static [&'static str] {
        match self {
            Self::Torch => &["torch", "transformers", "rloom.worker", "rloom._native"],
            Self::Vllm => &["torch", "vllm"],
            Self::Sglang => &["torch", "sglang"],
        }
    }

    /// Key of a recipe that names the interpreter.
    pub fn key(self) -> &'static str {
        match self {
            Self::Torch => "trainer.python",
            Self::Vllm | Self::Sglang => "rollout.python",
        }
    }
}

impl fmt::Display for EnvironmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An environment that `rloom engines install` has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonEnvironment {
    /// Engine that it is for.
    pub engine: EnvironmentKind,
    /// Version of its interpreter.
    pub python: String,
    /// Requested versions of the packages.
    pub packages: BTreeMap<String, String>,
    /// Its folder.
    #[serde(skip_deserializing)]
    pub directory: PathBuf,
}

impl PythonEnvironment {
    /// Folder of an engine's environment unless another one is chosen: `rloom/engines` in the user's caches.
    pub fn default_directory(engine: EnvironmentKind) -> PathBuf {
        let caches = rloom_hub::cache_home().unwrap_or_else(|| PathBuf::from(".cache"));
        caches.join("rloom").join("engines").join(engine.name())
    }

    /// The finished environment of an engine in its default place.
    pub fn installed(engine: EnvironmentKind) -> Option<Self> {
        Self::open(&Self::default_directory(engine)).filter(|environment| environment.engine == engine)
    }

    /// The finished environment in a folder.
    fn open(directory: &Path) -> Option<Self> {
        let text = std::fs::read(directory.join(MARKER)).ok()?;
        let environment: Self = serde_json::from_slice(&text).ok()?;
        let environment = Self { directory: directory.to_owned(), ..environment };
        environment.interpreter().exists().then_some(environment)
    }

    /// Its interpreter.
    pub fn interpreter(&self) -> PathBuf {
        interpreter_in(&self.directory)
    }

    /// True if it has the versions that this program installs.
    pub fn is_current(&self) -> bool {
        let pins = pins::of(self.engine, crate::gpus() > 0);
        // What is needed for adapters alone is named by the error of a run that misses it.
        pins.iter()
            .filter(|pin| !pin.is_for_adapters())
            .all(|pin| self.packages.get(pin.name).is_some_and(|found| pin.accepts(found)))
    }
}

/// Interpreter of an engine: the one that a recipe names, or that of the installed environment.
pub fn interpreter(configured: &Path, engine: EnvironmentKind) -> Option<PathBuf> {
    if configured.as_os_str().is_empty() {
        return PythonEnvironment::installed(engine).map(|environment| environment.interpreter());
    }
    Some(configured.to_owned())
}

fn interpreter_in(directory: &Path) -> PathBuf {
    directory.join("bin").join("python")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finished_environment_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let environment = PythonEnvironment {
            engine: EnvironmentKind::Vllm,
            python: "3.11.7".to_owned(),
            packages: [("vllm".to_owned(), "0.33.0".to_owned())].into(),
            directory: folder.path().to_owned(),
        };
        assert_eq!(PythonEnvironment::open(folder.path()), None);
        let text = serde_json::to_string(&environment).unwrap();
        std::fs::write(folder.path().join(MARKER), text).unwrap();
        assert_eq!(PythonEnvironment::open(folder.path()), None, "it has no interpreter");
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::fs::write(environment.interpreter(), "").unwrap();
        assert_eq!(PythonEnvironment::open(folder.path()), Some(environment));
        std::fs::write(folder.path().join(MARKER), "{").unwrap();
        assert_eq!(PythonEnvironment::open(folder.path()), None, "the marker is cut off");
    }

    #[test]
    fn a_named_interpreter_wins() {
        let named = interpreter(Path::new("/venv/bin/python"), EnvironmentKind::Torch);
        assert_eq!(named, Some(PathBuf::from("/venv/bin/python")));
    }
}
