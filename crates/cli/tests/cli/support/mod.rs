//! Runs the program and captures its output.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod audit;
pub(crate) mod hub;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// A recipe with two very short stages.
pub(crate) const TINY: &str = include_str!("tiny.toml");

/// A temporary folder in which the program runs.
#[derive(Debug)]
pub(crate) struct Sandbox(TempDir);

/// Exit code and output of the program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
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
        for variable in ["NO_COLOR", "COLUMNS", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        command.env("HF_HUB_CACHE", "cache").env("HF_HUB_OFFLINE", "1");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        self.finished(&self.command(arguments).output().unwrap())
    }

    pub(crate) fn finished(&self, output: &Output) -> Finished {
        let here = self.0.path().display().to_string();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&here, "HERE");
        Finished { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Finished {
    /// The hints of an error.
    pub(crate) fn hints(&self) -> Vec<&str> {
        self.stderr.lines().filter_map(|line| line.strip_prefix("hint: ")).collect()
    }

    /// Exit code and output as one text, for snapshots.
    pub(crate) fn text(&self) -> String {
        let code = self.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        format!("exit code {code}\n----- stdout\n{}----- stderr\n{}", self.stdout, self.stderr)
    }
}

/// The text without the figures of its lines about memory, which depend on the caches and the threads of the machine.
pub(crate) fn without_memory(text: &str) -> String {
    let is_memory = |line: &str| line.trim_start().starts_with("memory ") || line.contains("a sequence of");
    let figure = |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) || word.contains("iB");
    let hidden = |line: &str| {
        let words = line.split(' ').map(|word| if figure(word) { "#" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    let lines = text.split('\n').map(|line| if is_memory(line) { hidden(line) } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

/// Compares with the snapshot `name`, independent of the name of the test.
pub(crate) fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../../snapshots" }, {
        insta::assert_snapshot!(name, text);
    });
}

/// The lines of a file.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

/// A sandbox with the run `runs/tiny` of [`TINY`].
pub(crate) fn trained() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let result = sandbox.run(&["train", "tiny.toml"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    sandbox
}

/// True if this process, and therefore the ones that it starts, ignores a signal. Only Linux tells.
pub(crate) fn is_ignored(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0").trim();
    u64::from_str_radix(mask, 16).unwrap() & (1 << (signal - 1)) != 0
}

/// Sends a signal, such as `-TERM`.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}
