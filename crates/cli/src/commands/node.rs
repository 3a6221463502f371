//! `rloom node` and `rloom guard`: the processes between a run and the programs that it starts.

use rloom_cluster::daemon::{self, Daemon};
use rloom_cluster::{Program, guard};
use rloom_wire::{Options, Token};

use crate::arguments::{Guard, Node};
use crate::failure::Failure;

pub(crate) fn run(arguments: Node) -> Result<(), Failure> {
    let daemon = Daemon {
        controller: arguments.controller,
        token: Token::from_environment().map_err(Failure::usage)?,
        index: arguments.index,
        program: Program::current(),
        options: Options::default(),
    };
    daemon::run(&daemon).map_err(Failure::failed)
}

pub(crate) fn guard(arguments: &Guard) -> Result<(), Failure> {
    if let Some(guard) = arguments.guard {
        guard::become_program(guard, &arguments.program);
    }
    let failed = |error| Failure::failed_text(format_args!("the guard of a process failed: {error}"));
    guard::run(&Program::current()).map_err(failed)
}
