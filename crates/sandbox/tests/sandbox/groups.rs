//! Control groups of executions. Few machines of tests delegate them, so a folder with their files stands in: what the kernel would do
//! with them is not tested there. Where they are delegated, all other tests run in them.

use std::fs;
use std::path::{Path, PathBuf};

use rloom_sandbox::SandboxError;

use super::*;

fn stand_in() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, content) in [
        ("cgroup.procs", ""),
        ("cgroup.controllers", "memory pids"),
        ("cgroup.subtree_control", "memory pids"),
    ] {
        fs::write(folder.path().join(file), content).unwrap();
    }
    folder
}

/// The groups in a folder.
fn groups(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[test]
fn each_execution_has_a_group_with_its_limits() {
    for sandbox in sandboxes() {
        let folder = stand_in();
        let sandbox = sandbox.clone().in_groups(folder.path()).unwrap();
        assert_eq!(sandbox.groups(), Some(folder.path()));
        let protection = rloom_sandbox::Executor::from(sandbox.clone()).protection();
        assert_eq!(protection, format!("{} and control groups", sandbox.tier()));
        let mut execution = shell("echo $$");
        execution.limits.processes = 20;
        for number in 1..=2 {
            stdout(&sandbox, &execution);
            let found = groups(folder.path());
            assert_eq!(found.len(), number, "{}", sandbox.tier());
            for group in found {
                let number =
                    |file: &str| fs::read_to_string(group.join(file)).unwrap().parse::<u64>().unwrap();
                assert!(number("memory.max") > execution.limits.memory);
                assert!((20..30).contains(&number("pids.max")));
                // The helper, or its second stage.
                assert!(number("cgroup.procs") > 1);
            }
        }
    }
}

#[test]
fn a_group_that_cannot_be_made_is_a_failure_of_the_machine() {
    for sandbox in sandboxes() {
        let folder = stand_in();
        let sandbox = sandbox.clone().in_groups(folder.path()).unwrap();
        drop(folder);
        let error = sandbox.run(&shell("true")).unwrap_err();
        assert!(
            matches!(&error, SandboxError::Failed { reason } if reason.contains("control group")),
            "{error}"
        );
        assert!(error.is_retryable());
    }
}

#[test]
fn folders_that_are_no_groups_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = sandboxes().first().unwrap();
    assert!(sandbox.clone().in_groups(folder.path()).is_err());
}
