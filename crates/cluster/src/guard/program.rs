//! Start of the program: a child of the guard ties itself to its parent's life, then becomes the program.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Child, Command, Stdio};

use crate::guard::{COMMAND, children};
use crate::spec::ProcessSpec;
use rloom_core::Program;

/// Exit code of a child that could not become the program.
const NOT_STARTED: i32 = 127;

/// Starts the child. It writes the reason to the pipe if it cannot become the program.
pub(super) fn start(
    this: &Program,
    spec: &ProcessSpec,
    is_relayed: bool,
) -> Result<(Child, PipeReader), String> {
    if let Some(directory) = &spec.directory
        && !directory.is_dir()
    {
        return Err(format!("its working directory {} does not exist", directory.display()));
    }
    let spawn = || {
        let (report, reporting) = io::pipe()?;
        let mut command = this.command(COMMAND);
        command.arg(std::process::id().to_string()).args(is_relayed.then_some("relayed"));
        command.arg("--").arg(&spec.program).args(&spec.arguments);
        command.envs(&spec.environment).process_group(0).stdin(Stdio::from(reporting));
        if !is_relayed {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        if let Some(directory) = &spec.directory {
            command.current_dir(directory);
        }
        command.spawn().map(|child| (child, report))
    };
    spawn().map_err(|error| format!("its guard could not start a process: {error}"))
}

/// Waits until the child is the program; the reason if it could not become it.
pub(super) fn failure(mut report: PipeReader) -> Option<String> {
    let mut reason = String::new();
    // The pipe closes when the child becomes the program, or ends.
    let _ = report.read_to_string(&mut reason);
    (!reason.is_empty()).then_some(reason)
}

/// Turns this process, a child of the guard with process id `guard`, into a program. The standard input of a relayed one is
/// its standard output, a socket. Does not return.
#[expect(clippy::exit, reason = "the process has nothing to clean up, and its standard input may be gone")]
pub fn run(guard: u32, is_relayed: bool, command_line: &[OsString]) {
    // `exec` closes the pipe if it succeeds, and has replaced standard input if it fails.
    let pipe = io::stdin().as_fd().try_clone_to_owned();
    let reason = replace(guard, is_relayed, command_line);
    if let Ok(pipe) = pipe {
        let _ = PipeWriter::from(pipe).write_all(reason.as_bytes());
    }
    std::process::exit(NOT_STARTED);
}

/// Becomes the program; returns the reason if that fails.
fn replace(guard: u32, is_relayed: bool, command_line: &[OsString]) -> String {
    let Some((program, arguments)) = command_line.split_first() else {
        return "it has no command line".to_owned();
    };
    if let Err(error) = children::die_with_parent() {
        return format!("it could not be tied to its guard: {error}");
    }
    if parent_id() != guard {
        return "its guard has ended".to_owned();
    }
    let input = match is_relayed.then(|| io::stdout().as_fd().try_clone_to_owned()) {
        Some(Ok(socket)) => Stdio::from(socket),
        Some(Err(error)) => return format!("its standard input could not be opened: {error}"),
        None => Stdio::null(),
    };
    let error = Command::new(program).args(arguments).stdin(input).exec();
    format!("`{}`: {error}", program.to_string_lossy())
}
