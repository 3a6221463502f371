//! `rloom sandbox`: the process between a run and an untrusted program.

use rloom_core::Program;

use crate::failure::Failure;

pub(crate) fn run() -> Result<(), Failure> {
    let failed = |error| Failure::failed_text(format_args!("{error}"));
    rloom_sandbox::run_helper(&Program::current()).map_err(failed)
}
