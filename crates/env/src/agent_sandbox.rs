use std::path::{Path, PathBuf};

use rloom_core::{SettingError, SettingProblem, ValueRange};
use rloom_sandbox::{Choice, Limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sandbox in which agents are started. Of the network they reach the policy alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSandbox {
    /// Protection of the machine from the agent.
    pub tier: Choice,
    /// Files that each agent finds in its working folder, which is empty otherwise and removed at its end.
    pub files: Vec<PathBuf>,
    /// Folders that the agent can read in addition to those of the system, such as that of an interpreter; its `bin` is
    /// searched first.
    pub readable: Vec<PathBuf>,
    /// Memory of the agent and its processes, in MiB.
    pub memory_mib: u64,
    /// Size of all files that the agent writes, in MiB.
    pub disk_mib: u64,
    /// Number of processes and threads of the agent.
    pub processes: u64,
}

impl Default for AgentSandbox {
    fn default() -> Self {
        Self {
            tier: Choice::Auto,
            files: Vec::new(),
            readable: Vec::new(),
            memory_mib: 1024,
            disk_mib: 64,
            processes: 64,
        }
    }
}

impl AgentSandbox {
    pub(crate) fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(64.0, 1_048_576.0).check("sandbox.memory_mib", self.memory_mib as f64)?;
        ValueRange::between(1.0, 1_048_576.0).check("sandbox.disk_mib", self.disk_mib as f64)?;
        ValueRange::between(1.0, 65_536.0).check("sandbox.processes", self.processes as f64)?;
        let mut names: Vec<_> = self.files.iter().map(|file| file.file_name()).collect();
        names.sort();
        if names.contains(&None) {
            let (value, expected) = (format!("{:?}", self.files), "paths of files");
            return Err(SettingProblem::Invalid { value, expected }.at("sandbox.files"));
        }
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                let value = pair[0].unwrap_or_default().display().to_string();
                Err(SettingProblem::Repeated { value }.at("sandbox.files"))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn make_absolute(&mut self) {
        for path in self.files.iter_mut().chain(&mut self.readable) {
            if let Ok(absolute) = path.canonicalize() {
                *path = absolute;
            }
        }
    }

    /// The first of its files that does not exist.
    pub(crate) fn missing_file(&self) -> Option<&Path> {
        self.files.iter().map(PathBuf::as_path).find(|file| !file.is_file())
    }

    /// Limits of the agent but those of its time.
    pub fn limits(&self) -> Limits {
        let Self { memory_mib, disk_mib, processes, .. } = *self;
        Limits { memory: memory_mib << 20, disk: disk_mib << 20, processes, ..Limits::default() }
    }
}
