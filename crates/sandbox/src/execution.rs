use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Limits, message};

/// A program to run, with its input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// The program, which is searched in the folders of programs unless it contains `/`, and its arguments.
    pub command: Vec<String>,
    /// Environment, in addition to `PATH`, `HOME`, `TMPDIR` and `LANG`.
    pub environment: BTreeMap<String, String>,
    /// Files of the working folder.
    pub files: Vec<InputFile>,
    /// Standard input.
    #[serde(with = "message::bytes")]
    pub stdin: Vec<u8>,
    /// Names of files of the working folder to return.
    pub outputs: Vec<String>,
    /// Gives the program file descriptor 3, whose text is returned as the report.
    pub reports: bool,
    /// Folders of the machine that the program can read, in addition to those of the system.
    pub readable: Vec<PathBuf>,
    /// The only server that the program can reach.
    pub service: Option<Service>,
    /// Passes standard output and error on while the program runs, to the reader of [`Sandbox::run_until`](crate::Sandbox::run_until),
    /// instead of returning them.
    pub passes_output: bool,
    /// Limits.
    pub limits: Limits,
}

/// A server of the machine on 127.0.0.1. The program reaches it at the same address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Port of the server.
    pub port: u16,
    /// A Unix socket of the same server, for namespaces, which have a network of their own. All users can connect to it.
    pub socket: PathBuf,
}

/// A file of the working folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Name, without folders.
    pub name: String,
    /// Content.
    #[serde(with = "message::bytes")]
    pub content: Vec<u8>,
    /// True for a program.
    pub is_executable: bool,
}

impl InputFile {
    /// A file that is not a program.
    pub fn new(name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), content: content.into(), is_executable: false }
    }
}

/// True for the name of a file without folders.
pub(crate) fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

#[cfg(test)]
mod tests {
    use super::is_file_name;

    #[test]
    fn names_stay_in_the_folder() {
        assert!(is_file_name("main.py") && is_file_name(".hidden"));
        for name in ["", ".", "..", "/etc", "a/b", "a/", "../a", "./a"] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
