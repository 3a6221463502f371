//! Processes of functions on other machines. Their standard input and output are a stream of this one.

use std::fmt::Debug;
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

/// A program that serves a function, and the worker of its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedCommand {
    /// Path of the program, or a name that is found in `PATH`.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Working directory, if its arguments need one.
    pub directory: Option<PathBuf>,
    /// Number of the worker in its pool.
    pub worker: usize,
}

/// Starts processes on the machines of a run.
pub trait Host: Debug + Send + Sync {
    /// Starts a process, which runs when this returns. A start that waits for a machine gives up once `goes_on` is false.
    /// The error names the machine.
    fn start(&self, command: &HostedCommand, goes_on: &dyn Fn() -> bool) -> Result<Hosted, String>;
}

/// A process that was started on a machine.
#[derive(Debug)]
pub struct Hosted {
    /// The process.
    pub process: Arc<dyn HostedProcess>,
    /// Its standard input and output.
    pub stream: TcpStream,
    /// Name of its machine in messages.
    pub machine: String,
}

/// A process on a machine.
pub trait HostedProcess: Debug + Send + Sync {
    /// Kills it with its group, and waits for its end.
    fn kill(&self);

    /// Its end, such as "exited with status 1"; `None` while it runs.
    fn ended(&self) -> Option<String>;

    /// The end of its standard error so far.
    fn stderr(&self) -> String;

    /// Resident memory in bytes, where the operating system tells it.
    fn resident_memory(&self) -> Option<u64>;
}

/// The input of a hosted process, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Input(pub(crate) TcpStream);

impl std::io::Write for Input {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // The output may still follow on the same stream.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
