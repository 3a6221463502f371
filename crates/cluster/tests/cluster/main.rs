//! Processes on a node: starts, stops, and the death of each party.
//!
//! Daemons, guards and controllers are this test program, started with the name of an ignored test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rloom_cluster::daemon::{self, Daemon};
use rloom_cluster::{Node, NodeListener, Process, ProcessSpec, Program, guard};
use rloom_wire::{Options, TOKEN_VARIABLE, Token, WireError};

mod deaths;
mod local;
mod mirror;
mod nodes;
#[cfg(target_os = "linux")]
mod partitions;
mod relay_speed;
mod relays;
mod starts;
mod stdio;
mod stops;

const TOKEN: &str = "a token of this test";
const CONTROLLER: &str = "RLOOM_TEST_CONTROLLER";
const MARK: &str = "RLOOM_TEST_MARK";
const LEASE: &str = "RLOOM_TEST_LEASE";
const INDEX: &str = "RLOOM_TEST_INDEX";
const WAIT: &str = "RLOOM_TEST_WAIT";

/// A deadline that passes in a hung test alone.
fn soon() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

/// The command line of an ignored test of this program.
fn this() -> Program {
    let arguments = ["--exact", "--ignored", "--nocapture", "-q"].map(str::to_owned).to_vec();
    Program { path: std::env::current_exe().unwrap(), arguments }
}

fn this_as(test: &str) -> Command {
    let mut command = Command::new(this().path);
    command.args(this().arguments).arg(test).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Settings of a daemon.
fn daemon_of(controller: &str) -> Daemon {
    Daemon {
        controller: controller.to_owned(),
        token: Token::new(TOKEN).unwrap(),
        index: 0,
        program: this(),
        options: Options::default(),
        wait: Duration::ZERO,
        on_wait: |_| {},
    }
}

/// A daemon in a process of its own, and its controller in this one.
struct Machine {
    node: Node,
    daemon: Killed,
    /// Its relays dial in here.
    listener: NodeListener,
}

impl Machine {
    fn new() -> Self {
        Self::with(Options::default(), Options::default().lease)
    }

    /// Options of the controller's end, and the daemon's lease.
    fn with(options: Options, lease: Duration) -> Self {
        let token = Token::new(TOKEN).unwrap();
        let listener = NodeListener::bind("127.0.0.1:0", token, options).unwrap();
        let mut command = this_as("node");
        command.env(CONTROLLER, listener.address().to_string()).env(TOKEN_VARIABLE, TOKEN);
        let daemon = command.env(LEASE, lease.as_millis().to_string()).spawn().unwrap();
        let node = listener.accept(soon()).unwrap();
        Self { node, daemon: Killed(daemon), listener }
    }

    /// Drops the node, and waits for the end of its daemon.
    fn end(self) -> ExitStatus {
        let Self { node, mut daemon, listener: _listener } = self;
        drop(node);
        daemon.0.wait().unwrap()
    }

    fn start(&self, script: &str) -> Process {
        self.node.start(&shell(script), soon()).unwrap()
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shell(script: &str) -> ProcessSpec {
    ProcessSpec {
        name: "rank 2".to_owned(),
        role: "rank".to_owned(),
        program: "sh".to_owned(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        ..ProcessSpec::default()
    }
}

/// Waits until the output of a process contains a text.
fn wait_for_output(process: &Process, text: &str) {
    let deadline = soon();
    while !process.output(deadline).unwrap().contains(text) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Command lines of the processes that contain `mark`.
fn alive(mark: &str) -> Vec<String> {
    let processes = Command::new("ps").args(["-A", "-o", "stat=,pid=,args="]).output().unwrap();
    let processes = String::from_utf8_lossy(&processes.stdout).into_owned();
    let is_alive = |line: &&str| line.contains(mark) && !line.starts_with('Z');
    processes.lines().filter(is_alive).map(str::to_owned).collect()
}

/// Waits until at least `count` processes contain `mark`.
fn wait_until_alive(mark: &str, count: usize) {
    let deadline = soon();
    while alive(mark).len() < count {
        assert!(Instant::now() < deadline, "{:?}", alive(mark));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until no process contains `mark`.
fn wait_until_gone(mark: &str) {
    let deadline = soon();
    while !alive(mark).is_empty() {
        assert!(Instant::now() < deadline, "still alive: {:?}", alive(mark));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An argument of `sleep` that no other process has.
fn mark(number: u32) -> String {
    format!("86400.{}{number:02}", std::process::id())
}

#[test]
#[ignore = "the daemon of other tests"]
fn node() {
    let lease = std::env::var(LEASE).unwrap().parse().unwrap();
    let options = Options { lease: Duration::from_millis(lease), ..Options::default() };
    let controller = std::env::var(CONTROLLER).unwrap();
    let token = Token::from_environment().unwrap();
    let number = |name| std::env::var(name).map_or(0, |value| value.parse().unwrap());
    let (index, wait) = (number(INDEX), Duration::from_secs(number(WAIT).into()));
    let on_wait = |error: &WireError| println!("waiting: {error}");
    let ended = daemon::run(&Daemon { token, options, index, wait, on_wait, ..daemon_of(&controller) });
    assert!(ended.is_ok(), "{}", ended.unwrap_err());
}

/// True in the child of a guard before it becomes its program. If that is a test of this binary, the command line of the child
/// names it, too.
fn is_guard() -> bool {
    std::env::args_os().any(|argument| argument == "--")
}

#[test]
#[ignore = "the guard of other tests, and the child that becomes the program"]
fn guard() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.iter().position(|argument| argument == "--") {
        Some(at) => {
            let is_relayed = arguments[at - 1] == "relayed";
            let guard = arguments[at - 1 - usize::from(is_relayed)].to_str().unwrap().parse().unwrap();
            guard::become_program(guard, is_relayed, &arguments[at + 1..]);
        }
        None => guard::run(&this()).unwrap(),
    }
}

#[test]
#[ignore = "a controller that other tests kill"]
fn controller() {
    let machine = Machine::new();
    let mark = std::env::var(MARK).unwrap();
    let process =
        machine.start(&format!("sleep {mark} & trap '' TERM INT HUP; while :; do sleep {mark}; done"));
    process.wait(Instant::now() + Duration::from_hours(1)).unwrap();
}
