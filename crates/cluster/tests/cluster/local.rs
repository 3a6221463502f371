//! The daemon of this machine as a child process.

use std::time::Duration;

use rloom_cluster::{ClusterError, LocalOptions, Node, Program};

use crate::{LEASE, alive, mark, shell, soon, this, wait_until_alive, wait_until_gone};

/// A launcher that runs a script with the arguments of a daemon.
fn launcher(script: &str) -> LocalOptions {
    let arguments = vec!["-c".to_owned(), script.to_owned()];
    LocalOptions { program: Program { path: "sh".into(), arguments }, ..LocalOptions::default() }
}

/// A launcher of this program's daemon, whose command line contains `mark`.
fn daemon(mark: &str) -> LocalOptions {
    let Program { path, arguments } = this();
    let arguments = arguments.join(" ");
    launcher(&format!(
        "export RLOOM_TEST_CONTROLLER=$2 {LEASE}=10000; exec {} {arguments} node {mark}",
        path.display()
    ))
}

#[test]
fn a_node_lives_as_long_as_its_handles() {
    let mark = mark(30);
    let node = Node::local(&daemon(&mark)).unwrap();
    assert_eq!(node.name(), "this machine");
    assert_eq!(alive(&mark).len(), 1);
    let process = node.start(&shell(&format!("sleep {mark} & exec sleep {mark}")), soon()).unwrap();
    wait_until_alive(&mark, 3);
    // Nothing is relayed on one machine.
    assert_eq!(node.relay(4711).unwrap().address(), "127.0.0.1:4711".parse().unwrap());
    drop(node);
    assert_eq!(process.exited().unwrap(), None, "a process keeps its node");
    drop(process);
    // The daemon ended before the last handle was dropped.
    assert_eq!(alive(&mark), Vec::<String>::new());
}

#[test]
fn the_death_of_the_daemon_is_named() {
    let mark = mark(31);
    let node = Node::local(&daemon(&mark)).unwrap();
    let process = node.start(&shell("sleep 86400"), soon()).unwrap();
    let daemon = alive(&mark).remove(0);
    let pid = daemon.split_whitespace().nth(1).unwrap();
    assert!(std::process::Command::new("kill").args(["-TERM", pid]).status().unwrap().success());
    let error = process.wait(soon()).unwrap_err();
    assert!(matches!(error, ClusterError::NodeEnded { .. }), "{error}");
    assert!(error.to_string().starts_with("the daemon of this machine was ended by SIGTERM"), "{error}");
    wait_until_gone(&mark);
}

#[test]
fn a_daemon_that_fails_to_start_is_quoted() {
    let error = Node::local(&launcher("echo a broken installation >&2; exit 9")).unwrap_err();
    assert!(matches!(error, ClusterError::DaemonEnded { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("ended with exit code 9") && message.contains("| a broken installation"),
        "{message}"
    );
    let missing = Program { path: "/no/such/rloom".into(), arguments: Vec::new() };
    let error = Node::local(&LocalOptions { program: missing, ..LocalOptions::default() }).unwrap_err();
    assert!(matches!(error, ClusterError::Launch { .. }), "{error}");
}

#[test]
fn a_daemon_that_does_not_connect_is_killed() {
    let mark = mark(32);
    let options = launcher(&format!("exec sleep {mark}"));
    let error = Node::local(&LocalOptions { timeout: Duration::from_millis(300), ..options }).unwrap_err();
    assert!(matches!(error, ClusterError::DaemonSilent { .. }), "{error}");
    assert_eq!(alive(&mark), Vec::<String>::new());
}
