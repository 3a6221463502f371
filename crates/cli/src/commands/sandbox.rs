//! `rloom sandbox`: the process between a run and an untrusted program.

use std::io::Write as _;
use std::process::ExitCode;

use rloom_core::Program;

pub(crate) fn run() -> ExitCode {
    match rloom_sandbox::run_helper(&Program::current()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}
