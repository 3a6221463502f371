//! `rloom node` and the processes that it runs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rloom_cluster::{LocalOptions, Node, NodeListener, Process, ProcessSpec, Program};
use rloom_wire::{Identity, Listener, Options, Token};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::support::Sandbox;

/// Argument of `sleep`, unique in this machine, and folder of a controller that tests start.
const MARK: &str = "RLOOM_TEST_MARK";
const FOLDER: &str = "RLOOM_TEST_FOLDER";

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

fn node() -> Node {
    let program = Program { path: env!("CARGO_BIN_EXE_rloom").into(), arguments: Vec::new() };
    Node::local(&LocalOptions { program, ..LocalOptions::default() }).unwrap()
}

fn start(node: &Node, script: &str) -> Process {
    let spec = ProcessSpec {
        name: "rank 0".to_owned(),
        role: "rank".to_owned(),
        program: "sh".to_owned(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        ..ProcessSpec::default()
    };
    node.start(&spec, soon()).unwrap()
}

/// Number of living processes whose command line contains `mark`.
fn alive(mark: &str) -> usize {
    let processes = Command::new("ps").args(["-A", "-o", "stat=,args="]).output().unwrap().stdout;
    let processes = String::from_utf8_lossy(&processes);
    processes.lines().filter(|line| line.contains(mark) && !line.starts_with('Z')).count()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_process_runs_on_this_machine() {
    let node = node();
    let process = start(&node, "echo [$RLOOM_TOKEN] >&2; exit 3");
    let exit = process.wait(soon()).unwrap();
    assert_eq!(exit.code, Some(3));
    // Nothing else is in it: neither guard nor daemon write to it.
    assert_eq!(exit.output, "[]\n");
    let port = node.free_port(soon()).unwrap();
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn a_missing_program_is_named() {
    let spec = ProcessSpec {
        name: "rank 0".to_owned(),
        program: "no-such-python".to_owned(),
        ..ProcessSpec::default()
    };
    let error = node().start(&spec, soon()).unwrap_err().to_string();
    assert!(
        error.starts_with("could not start rank 0 on this machine: `no-such-python`: No such file"),
        "{error}"
    );
}

#[test]
fn a_daemon_needs_the_token_and_the_controller() {
    let sandbox = Sandbox::new();
    let token = Token::random().unwrap();
    let identity = Identity::new("controller", 0, 0);
    let listener = Listener::bind("127.0.0.1:0", token, identity, Options::default()).unwrap();
    let address = listener.address().to_string();
    let dial = |token: Option<&str>, address: &str| {
        let mut command = sandbox.command(&["node", "--controller", address, "--wait", "0"]);
        command.env_remove("RLOOM_TOKEN").envs(token.map(|token| ("RLOOM_TOKEN", token)));
        sandbox.finished(&command.output().unwrap())
    };
    let missing = dial(None, &address);
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.stderr.starts_with("error: the environment variable RLOOM_TOKEN is not set\nhint: "),
        "{}",
        missing.stderr
    );
    let other = "another token than that of the listener";
    let wrong = dial(Some(other), &address);
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong.stderr.contains("has another token than this process\nhint: set RLOOM_TOKEN"),
        "{}",
        wrong.stderr
    );
    assert!(!wrong.stderr.contains(other), "{}", wrong.stderr);
    drop(listener);
    let gone = dial(Some(other), &address);
    assert_eq!(gone.code, Some(1));
    assert!(gone.stderr.contains(&format!("could not connect to {address}")), "{}", gone.stderr);
}

#[test]
fn a_daemon_waits_for_its_controller_and_takes_its_index_from_the_scheduler() {
    let sandbox = Sandbox::new();
    let token = Token::random().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let daemon = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = sandbox.command(&[&["node", "--controller", &address], arguments].concat());
        command.env_remove("SLURM_NODEID").env_remove("JOB_COMPLETION_INDEX");
        command.env("RLOOM_TOKEN", token.reveal()).envs(variables.iter().copied());
        command
    };
    let mut waiting = daemon(&["--wait", "120"], &[]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let expected = format!("waiting for the controller: could not connect to {address}: ");
    assert!(line.starts_with(&expected), "{line}");
    let listener = NodeListener::bind(&address, token.clone(), Options::default()).unwrap();
    assert_eq!(listener.accept(soon()).unwrap().index(), 0);
    assert!(waiting.wait().unwrap().success());
    let slurm = ("SLURM_NODEID", "3");
    let kubernetes = ("JOB_COMPLETION_INDEX", "5");
    let given = ["--index", "1"];
    let cases = [(&[][..], vec![slurm], 3), (&[], vec![kubernetes], 5), (&given, vec![slurm, kubernetes], 1)];
    for (arguments, variables, index) in cases {
        let mut running = daemon(arguments, &variables).spawn().unwrap();
        assert_eq!(listener.accept(soon()).unwrap().index(), index);
        assert!(running.wait().unwrap().success());
    }
    let wrong = sandbox.finished(&daemon(&[], &[("SLURM_NODEID", "first")]).output().unwrap());
    assert_eq!(wrong.code, Some(2));
    assert_eq!(wrong.stderr, "error: SLURM_NODEID is `first`, not the number of a node\n");
}

#[test]
#[ignore = "a controller that other tests interrupt or kill"]
#[expect(clippy::exit, reason = "no destructor runs")]
fn controller() {
    let (mark, folder) = (std::env::var(MARK).unwrap(), std::env::var(FOLDER).unwrap());
    let mut signals = Signals::new([SIGINT]).unwrap();
    let node = node();
    let process =
        start(&node, &format!("trap 'echo interrupted' INT; sleep {mark} & while :; do sleep {mark}; done"));
    wait_until("three processes", || alive(&mark) >= 3);
    std::fs::write(Path::new(&folder).join("ready"), "").unwrap();
    signals.forever().next();
    // The first Ctrl-C: everything runs, and the controller decides what stops.
    let output = process.output(soon()).unwrap();
    std::fs::write(Path::new(&folder).join("first"), output).unwrap();
    signals.forever().next();
    // The second one.
    std::process::exit(130);
}

/// Starts a controller in a process group of its own, as a shell does.
fn controller_with(mark: &str, folder: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "node::controller", "--ignored", "--nocapture"]).process_group(0);
    command.env(MARK, mark).env(FOLDER, folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_second_interruption_leaves_nothing() {
    if crate::support::is_ignored(SIGINT as u32) {
        return;
    }
    let sandbox = Sandbox::new();
    let mark = format!("86400.{}01", std::process::id());
    let mut controller = controller_with(&mark, &sandbox.path(""));
    wait_until("the controller is ready", || sandbox.path("ready").exists());
    // A terminal interrupts the whole group.
    let interrupt = || {
        let group = format!("-{}", controller.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    };
    interrupt();
    wait_until("the first interruption is noticed", || sandbox.path("first").exists());
    assert!(alive(&mark) >= 3);
    interrupt();
    assert_eq!(controller.wait().unwrap().code(), Some(130));
    wait_until("all processes end", || alive(&mark) == 0);
    assert_eq!(std::fs::read_to_string(sandbox.path("first")).unwrap(), "");
}

#[test]
fn nothing_survives_a_killed_controller() {
    let sandbox = Sandbox::new();
    let mark = format!("86400.{}02", std::process::id());
    let mut controller = controller_with(&mark, &sandbox.path(""));
    wait_until("the controller is ready", || sandbox.path("ready").exists());
    controller.kill().unwrap();
    controller.wait().unwrap();
    wait_until("all processes end", || alive(&mark) == 0);
}
