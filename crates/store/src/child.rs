//! Child processes that are aborted at an operation, for tests.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::faults::{Fault, FaultPlan};

/// Environment variable with the instructions of a child process: operation, fault and directory.
const INSTRUCTIONS: &str = "RLOOM_TEST_CHILD";

/// The instructions of this process, which are a fault in a directory; `None` if it is not a child process.
pub(crate) fn instructions() -> Option<FaultPlan> {
    let text = std::env::var(INSTRUCTIONS).ok()?;
    let mut parts = text.splitn(3, ' ');
    let number: usize = parts.next().unwrap().parse().unwrap();
    let fault = match parts.next().unwrap() {
        "before" => Fault::AbortBefore,
        "during" => Fault::AbortDuring,
        _ => Fault::AbortAfter,
    };
    let folder = PathBuf::from(parts.next().unwrap());
    Some(FaultPlan { folder, faults: vec![(number, fault)] })
}

/// Runs the ignored test `test` of this program in a process that is aborted `when` ("before", "during" or "after") its
/// operation `number` on a path in `directory`.
pub(crate) fn run(test: &str, number: usize, when: &str, directory: &Path) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored"])
        .env(INSTRUCTIONS, format!("{number} {when} {}", directory.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}
