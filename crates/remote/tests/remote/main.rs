//! Tests of the pool over stand-ins of inference servers, and of gangs of PyTorch ranks.

#![expect(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    clippy::exit,
    reason = "measurements are printed, and one test is a program of its own"
)]

use std::ffi::OsString;

use rloom_cluster::daemon::{self, Daemon};
use rloom_cluster::{Program, guard};
use rloom_wire::{Options, Token};

mod adapters;
mod conformance;
mod environments;
mod faults;
mod fields;
mod gang;
mod live;
mod machines;
mod measures;
mod mirrors;
mod pool;
mod processes;
mod real_vllm;
mod real_vllm_adapters;
mod real_vllm_turns;
mod stand_in;
mod support;
mod teacher;
mod vllm_measures;

/// The command line of an ignored test of this program.
fn this() -> Program {
    let arguments = ["--exact", "--ignored", "--nocapture", "-q"].map(str::to_owned).to_vec();
    Program { path: std::env::current_exe().unwrap(), arguments }
}

/// The node daemon, in a process of its own.
#[test]
#[ignore = "started by other tests"]
fn node() {
    let index = std::env::var("RLOOM_TEST_INDEX").ok();
    let _ = daemon::run(&Daemon {
        controller: std::env::var("RLOOM_TEST_CONTROLLER").unwrap(),
        token: Token::from_environment().unwrap(),
        index: index.as_ref().map_or(0, |index| index.parse().unwrap()),
        program: this(),
        options: Options::default(),
        // One with an index may come before its controller listens.
        wait: std::time::Duration::from_mins(u64::from(index.is_some())),
        on_wait: |_| {},
    });
}

/// True in the child of a guard before it becomes its program. If that is a test of this binary, the command line of the child
/// names it, too.
fn is_guard() -> bool {
    std::env::args_os().any(|argument| argument == "--")
}

/// The guard of a process.
#[test]
#[ignore = "started by other tests"]
fn guard() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.iter().position(|argument| argument == "--") {
        Some(at) => {
            let guard = arguments[at - 1].to_str().unwrap().parse().unwrap();
            guard::become_program(guard, false, &arguments[at + 1..]);
        }
        None => guard::run(&this()).unwrap(),
    }
}
