//! Descriptions of programs to start.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A program to start on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Name for messages, unique in a run, such as `rank 2`.
    pub name: String,
    /// Role, such as `rank` or `replica`.
    pub role: String,
    /// Path of the program, or a name that is found in `PATH`.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables added to the daemon's environment, which the program inherits without `RLOOM_TOKEN`.
    pub environment: BTreeMap<String, String>,
    /// Working directory; the daemon's if absent.
    pub directory: Option<PathBuf>,
    /// File that its output is appended to, as far as it can be written. Beyond 64 MiB it is renamed to end in `.1`.
    #[serde(default)]
    pub log: Option<PathBuf>,
}
