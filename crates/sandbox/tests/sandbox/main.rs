//! Programs in every tier that the machine has: their limits, their output, and what they must not reach.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test tells what it leaves out")]

mod code;
mod forgeries;
mod groups;
mod isolation;
mod limits;
mod programs;
mod resources;
mod server;
mod service;
mod tiers;

use std::sync::OnceLock;
use std::time::Duration;

use rloom_core::Program;
use rloom_sandbox::{Choice, Ending, Execution, InputFile, Limits, Sandbox};

/// The helper of this crate's tests. `RLOOM_TEST_HELPER` names a copy that other users can run.
fn helper() -> Program {
    let path = std::env::var("RLOOM_TEST_HELPER");
    let path = path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_sandbox-helper").to_owned());
    Program { path: path.into(), arguments: Vec::new() }
}

/// The sandboxes of the machine.
fn sandboxes() -> &'static [Sandbox] {
    static FOUND: OnceLock<Vec<Sandbox>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let choices = [Choice::Namespaces, Choice::Landlock];
        let found: Vec<Sandbox> = choices
            .into_iter()
            .filter_map(|choice| {
                Sandbox::detect(&helper(), choice).map_err(|error| eprintln!("left out: {error}")).ok()
            })
            .collect();
        assert!(!found.is_empty(), "the machine has no sandbox");
        found
    })
}

/// Runs a check in every tier.
fn in_each_tier(check: impl Fn(&Sandbox)) {
    for sandbox in sandboxes() {
        eprintln!("tier {}", sandbox.tier());
        check(sandbox);
    }
}

/// Path of Python, if the machine has it.
fn python() -> Option<&'static str> {
    let found = ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    if found.is_none() {
        eprintln!("left out: no python3 below /usr");
    }
    found
}

/// A program with time enough on a busy machine.
fn command(words: &[&str]) -> Execution {
    let limits = Limits { cpu: Duration::from_secs(30), wall: Duration::from_mins(1), ..Limits::default() };
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    Execution { command, limits, ..Execution::default() }
}

fn shell(script: &str) -> Execution {
    command(&["/bin/sh", "-c", script])
}

/// A Python program; `None` without Python.
fn script(text: &str) -> Option<Execution> {
    let mut execution = command(&[python()?, "-I", "-S", "main.py"]);
    execution.files = vec![InputFile::new("main.py", text)];
    Some(execution)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Output of a program that ends well.
fn stdout(sandbox: &Sandbox, execution: &Execution) -> String {
    let outcome = sandbox.run(execution).unwrap();
    assert!(
        outcome.ending.is_success(),
        "{:?}: {}{}",
        outcome.ending,
        text(&outcome.stdout),
        text(&outcome.stderr)
    );
    text(&outcome.stdout)
}
