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

mod conformance;
mod environments;
mod faults;
mod fields;
mod gang;
mod live;
mod measures;
mod pool;
mod processes;
mod real_vllm;
mod stand_in;
mod support;
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
    let _ = daemon::run(&Daemon {
        controller: std::env::var("RLOOM_TEST_CONTROLLER").unwrap(),
        token: Token::from_environment().unwrap(),
        index: 0,
        program: this(),
        options: Options::default(),
        wait: std::time::Duration::ZERO,
        on_wait: |_| {},
    });
}

/// The guard of a process.
#[test]
#[ignore = "started by other tests"]
fn guard() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.iter().position(|argument| argument == "--") {
        Some(at) => {
            let guard = arguments[at - 1].to_str().unwrap().parse().unwrap();
            guard::become_program(guard, &arguments[at + 1..]);
        }
        None => guard::run(&this()).unwrap(),
    }
}
