//! Deaths of controller, daemon and guard: nothing that they started stays.

use std::process::Command;
use std::time::{Duration, Instant};

use rloom_cluster::ClusterError;
use rloom_wire::Options;

use crate::{MARK, Machine, alive, mark, soon, this_as, wait_until_alive, wait_until_gone};

/// A program that ignores signals, with a child that does the same.
fn stubborn(mark: &str) -> String {
    format!("trap '' TERM INT HUP; (sleep {mark}; sleep {mark}) & while :; do sleep {mark}; done")
}

fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

#[test]
fn nothing_survives_the_daemon() {
    let machine = Machine::new();
    let mark = mark(20);
    let process = machine.start(&stubborn(&mark));
    wait_until_alive(&mark, 3);
    kill("-KILL", &machine.daemon.0.id().to_string());
    let error = process.wait(soon()).unwrap_err();
    assert!(matches!(error, ClusterError::NodeLost { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.starts_with("node 0 at 127.0.0.1:") && message.ends_with("its processes are lost"),
        "{message}"
    );
    assert!(machine.node.free_port(soon()).is_err());
    wait_until_gone(&mark);
}

#[test]
fn nothing_survives_the_controller() {
    let mark = mark(21);
    let mut controller = this_as("controller").env(MARK, &mark).spawn().unwrap();
    wait_until_alive(&mark, 3);
    let daemon = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().unwrap();
    let daemon = String::from_utf8(daemon.stdout).unwrap();
    let parent = controller.id().to_string();
    let daemon = daemon.lines().find(|line| line.split_whitespace().nth(1) == Some(&parent)).unwrap();
    let daemon = daemon.split_whitespace().next().unwrap().to_owned();
    controller.kill().unwrap();
    controller.wait().unwrap();
    wait_until_gone(&mark);
    // The daemon as well. Its zombie may wait for its new parent.
    let deadline = soon();
    loop {
        let state = Command::new("ps").args(["-o", "stat=", "-p", &daemon]).output().unwrap().stdout;
        if state.is_empty() || state.starts_with(b"Z") {
            break;
        }
        assert!(Instant::now() < deadline, "the daemon survived");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nothing_survives_a_silent_controller() {
    let silent = Options { beat: Duration::from_hours(1), ..Options::default() };
    let machine = Machine::with(silent, Duration::from_secs(2));
    let mark = mark(22);
    let _process = machine.start(&stubborn(&mark));
    wait_until_gone(&mark);
}

#[test]
fn nothing_survives_a_stopped_daemon() {
    let machine = Machine::with(Options::default(), Duration::from_secs(2));
    let mark = mark(26);
    let _process = machine.start(&stubborn(&mark));
    wait_until_alive(&mark, 3);
    let daemon = machine.daemon.0.id().to_string();
    // Shorter than the lease.
    kill("-STOP", &daemon);
    std::thread::sleep(Duration::from_millis(500));
    kill("-CONT", &daemon);
    std::thread::sleep(Duration::from_millis(500));
    assert!(alive(&mark).len() >= 3, "{:?}", alive(&mark));
    // For good: the daemon cannot act.
    kill("-STOP", &daemon);
    wait_until_gone(&mark);
}

#[test]
fn programs_outlive_the_lease_of_their_guards_while_the_daemon_beats() {
    let machine = Machine::with(Options::default(), Duration::from_secs(2));
    let mark = mark(27);
    let _process = machine.start(&stubborn(&mark));
    wait_until_alive(&mark, 3);
    // That of a guard is two seconds longer than the daemon's.
    std::thread::sleep(Duration::from_secs(5));
    assert!(alive(&mark).len() >= 3, "{:?}", alive(&mark));
}

#[test]
fn nothing_survives_a_guard() {
    let machine = Machine::new();
    let mark = mark(23);
    let process = machine.start(&stubborn(&mark));
    wait_until_alive(&mark, 3);
    let pid = process.pid().to_string();
    let guard = Command::new("ps").args(["-o", "ppid=", "-p", &pid]).output().unwrap();
    kill("-KILL", String::from_utf8(guard.stdout).unwrap().trim());
    let exit = process.wait(soon()).unwrap();
    assert_eq!((exit.signal, exit.stopped), (Some(9), false));
    wait_until_gone(&mark);
    // The node is not affected.
    assert!(machine.start("exit 0").wait(soon()).unwrap().is_success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_does_not_survive_daemon_and_guard() {
    let machine = Machine::new();
    let mark = mark(24);
    let process = machine.start(&format!("exec sleep {mark}"));
    wait_until_alive(&mark, 1);
    let pid = process.pid().to_string();
    let guard = Command::new("ps").args(["-o", "ppid=", "-p", &pid]).output().unwrap();
    let guard = String::from_utf8(guard.stdout).unwrap();
    // Stopped, the daemon cannot act.
    kill("-STOP", &machine.daemon.0.id().to_string());
    kill("-KILL", guard.trim());
    wait_until_gone(&mark);
}

#[test]
fn a_program_that_is_killed_from_outside_is_reported() {
    let machine = Machine::new();
    let mark = mark(25);
    let process = machine.start(&format!("sleep {mark} & exec sleep {mark}"));
    wait_until_alive(&mark, 2);
    kill("-KILL", &process.pid().to_string());
    let exit = process.wait(soon()).unwrap();
    assert_eq!((exit.signal, exit.stopped), (Some(9), false));
    wait_until_gone(&mark);
}
