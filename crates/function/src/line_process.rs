use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::process::Process;
use crate::{FunctionError, Malformed, Peer, Role};

/// Kills what is left of the processes when this program dies.
static GUARD: OnceLock<Arc<Mutex<Guard>>> = OnceLock::new();

/// A program that exchanges lines over stdin and stdout, in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub struct LineProcess(Process);

impl LineProcess {
    /// Starts a program; `command` is the program and its arguments. Lines of its output that are longer than `longest_line`
    /// bytes are errors.
    pub fn start(command: &[String], longest_line: usize) -> Result<Self, FunctionError> {
        let guard = GUARD.get_or_init(|| Arc::new(Mutex::new(Guard::start())));
        Process::start(&Peer::command(command, Role::Tools), longest_line, guard).map(Self)
    }

    /// Writes a line, on a thread of its own: a program that reads nothing does not block the caller.
    pub fn send(&self, line: &str) {
        self.0.send(format!("{line}\n").into_bytes());
    }

    /// The next line of the output. After an error the process is dead; a timeout is such an error.
    pub fn receive(&self, deadline: Instant) -> Result<Vec<u8>, FunctionError> {
        self.0.receive(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
    }

    /// The error for a violation of the protocol; kills the process.
    pub fn malformed(&self, problem: Malformed) -> FunctionError {
        self.0.malformed(problem)
    }
}
