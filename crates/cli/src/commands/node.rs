//! `rloom node` and `rloom guard`: the processes between a run and the programs that it starts.

use std::io::{self, Write as _};
use std::time::Duration;

use rloom_cluster::daemon::{self, Daemon};
use rloom_cluster::{Program, guard};
use rloom_wire::{Options, Token};

use crate::arguments::{Guard, Node};
use crate::failure::Failure;

/// Variables in which SLURM and Kubernetes number the nodes of a job.
const INDICES: [&str; 2] = ["SLURM_NODEID", "JOB_COMPLETION_INDEX"];

pub(crate) fn run(arguments: Node) -> Result<(), Failure> {
    let daemon = Daemon {
        controller: arguments.controller,
        token: Token::from_environment().map_err(Failure::usage)?,
        index: match arguments.index {
            Some(index) => index,
            None => index_of(|name| std::env::var(name).ok())?,
        },
        program: Program::current(),
        options: Options::default(),
        wait: Duration::from_secs(arguments.wait),
        on_wait: |error| {
            let _ = writeln!(io::stderr().lock(), "waiting for the controller: {error}");
        },
    };
    daemon::run(&daemon).map_err(Failure::failed)
}

/// Number that a scheduler gave this node; 0 without one.
fn index_of(variable: impl Fn(&str) -> Option<String>) -> Result<u32, Failure> {
    let Some((name, value)) = INDICES.iter().find_map(|name| Some((name, variable(name)?))) else {
        return Ok(0);
    };
    let invalid = |_| Failure::usage_text(format_args!("{name} is `{value}`, not the number of a node"));
    value.trim().parse().map_err(invalid)
}

pub(crate) fn guard(arguments: &Guard) -> Result<(), Failure> {
    if let Some(guard) = arguments.parent {
        guard::become_program(guard, arguments.stdio.is_some(), &arguments.program);
    }
    let failed = |error| Failure::failed_text(format_args!("the guard of a process failed: {error}"));
    guard::run(&Program::current()).map_err(failed)
}
