//! Running the program and looking at what it says.

#![expect(dead_code, reason = "each test program uses a part of this")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A recipe whose two stages take no time.
pub(crate) const TINY: &str = include_str!("tiny.toml");

/// A folder of its own, in which the program runs.
pub(crate) struct Place(TempDir);

/// What came of running the program.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rloom"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        for variable in ["NO_COLOR", "COLUMNS", "HF_TOKEN", "HF_ENDPOINT", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        command.env("RLOOM_CACHE", "cache");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        self.said(&self.command(arguments).output().unwrap())
    }

    pub(crate) fn said(&self, output: &Output) -> Said {
        let here = self.0.path().display().to_string();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&here, "HERE");
        Said { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Said {
    /// All of it, for a snapshot.
    pub(crate) fn whole(&self) -> String {
        let code = self.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        format!("exit code {code}\n----- stdout\n{}----- stderr\n{}", self.stdout, self.stderr)
    }
}

/// Compares with a snapshot that is called `name` whatever test asks.
pub(crate) fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!(name, text);
    });
}

/// The lines of a file.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}
