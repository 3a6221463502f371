//! Servers of a running run, whose number changes: stand-ins that the run starts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::plan_servers::RECIPE;
use crate::stand_in::{Protocol, StandIn};
use crate::support::{Sandbox, signal};

/// A program that takes the arguments of vLLM.
const SERVER: &str = r#"#!/bin/sh
echo "$@"
while [ $# -gt 0 ]; do [ "$1" = --port ] && port=$2; shift; done
RLOOM_TEST_PORT=$port exec "TESTS" --exact --ignored --nocapture -q scale::server
"#;

#[test]
#[ignore = "started by another test"]
fn server() {
    let port = std::env::var("RLOOM_TEST_PORT").unwrap().parse().unwrap();
    let server = StandIn::at(port, Protocol::Vllm);
    server.set_service(|_, tokens| Duration::from_millis(5 + tokens as u64));
    std::thread::sleep(Duration::from_hours(1));
}

/// Writes the program into a sandbox. Returns its path.
pub(crate) fn write_server(sandbox: &Sandbox) -> String {
    sandbox.write("server", &SERVER.replace("TESTS", std::env::current_exe().unwrap().to_str().unwrap()));
    let server = sandbox.path("server").display().to_string();
    assert!(std::process::Command::new("chmod").args(["+x", &server]).status().unwrap().success());
    server
}

/// Waits until exactly these servers run.
fn wait_for_servers(sandbox: &Sandbox, run: &mut Child, servers: &[usize]) {
    let deadline = Instant::now() + Duration::from_mins(3);
    let expected: Vec<String> = servers.iter().map(|server| format!("replica {server}")).collect();
    loop {
        let listed = sandbox.run(&["cluster", "ps", "runs/scaled"]);
        let names: Vec<&str> =
            listed.stdout.lines().filter_map(|line| Some(&line[line.find("replica ")?..])).collect();
        // The role comes before the name.
        let names: Vec<&str> = names.iter().map(|name| name.trim_start_matches("replica  ")).collect();
        if names == expected {
            return;
        }
        assert!(run.try_wait().unwrap().is_none(), "the run has ended");
        assert!(Instant::now() < deadline, "{expected:?} instead of {}", listed.text());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A command that stays would be carried out again.
fn wait_for_no_commands(sandbox: &Sandbox) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let commands = || std::fs::read_dir(sandbox.path("runs/scaled/control")).unwrap().count();
    while commands() > 0 {
        assert!(Instant::now() < deadline, "{} files of commands that were carried out", commands());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn servers_of_a_run_are_scaled_and_drained() {
    let sandbox = Sandbox::new();
    sandbox.write("recipe.toml", RECIPE);
    let python = format!("rollout.python={}", write_server(&sandbox));
    // The first server has two devices, all others one.
    let sizes = ["rollout.tensor_parallel=[2,1]", "rollout.replicas=1"];
    let settings = ["run.name=scaled", "stage.rl.steps=100000", &python, sizes[0], sizes[1]];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut command = sandbox.command(&[&["train", "recipe.toml", "--quiet"][..], &settings].concat());
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let control = |arguments: &[&str]| {
        let (command, rest) = arguments.split_first().unwrap();
        sandbox.run(&[&["cluster", command, "runs/scaled"][..], rest].concat())
    };
    wait_for_servers(&sandbox, &mut run, &[0]);
    assert_eq!(control(&["scale", "3"]).stdout, "from 1 to 3 servers\n");
    wait_for_servers(&sandbox, &mut run, &[0, 1, 2]);
    assert_eq!(control(&["drain", "1"]).stdout, "replica 1 ends once its requests are finished\n");
    wait_for_servers(&sandbox, &mut run, &[0, 2]);
    let unknown = control(&["drain", "1"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("there is no replica 1"), "{}", unknown.stderr);
    assert_eq!(control(&["scale", "1"]).stdout, "from 2 to 1 servers\n");
    wait_for_servers(&sandbox, &mut run, &[0]);
    for refused in [&["drain", "0"][..], &["scale", "0"]] {
        assert_eq!(control(refused).code, Some(1), "{refused:?}");
    }
    wait_for_no_commands(&sandbox);
    for (server, devices) in [(0, 2), (1, 1), (2, 1)] {
        let path = sandbox.path(&format!("runs/scaled/logs/replica-{server}.log"));
        let log = std::fs::read_to_string(path).unwrap();
        assert!(log.contains(&format!("--tensor-parallel-size {devices} ")), "{log}");
    }
    let logs = control(&["logs", "replica-1"]);
    assert_eq!(logs.code, Some(0), "{}", logs.text());
    signal(&run, "-TERM");
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(control(&["ps"]).stderr.contains("is not running"));
}
