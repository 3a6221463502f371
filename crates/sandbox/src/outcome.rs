use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{InputFile, message};

/// The end of an execution, with its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// End of the program.
    pub ending: Ending,
    /// Standard output, up to the limit.
    #[serde(with = "message::bytes")]
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    #[serde(with = "message::bytes")]
    pub stderr: Vec<u8>,
    /// Text written to file descriptor 3, up to the limit.
    #[serde(with = "message::bytes")]
    pub report: Vec<u8>,
    /// The requested files, as far as the program made them.
    pub outputs: Vec<InputFile>,
    /// Time until the end.
    pub wall: Duration,
    /// Processor time of the program and its children.
    pub cpu: Duration,
}

/// End of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It ended with this exit code.
    Exited(i32),
    /// It ended by this signal.
    Signaled(i32),
    /// Killed at the limit of time.
    TimedOut,
    /// Killed at the limit of processor time.
    CpuLimit,
    /// Killed at the limit of memory.
    MemoryLimit,
    /// Killed at the limit of output.
    OutputLimit,
    /// Killed at the limit of files or of their size. In namespaces the file system is full instead.
    DiskLimit,
    /// Killed at the limit of processes. In namespaces no process can be started instead.
    ProcessLimit,
}

impl Ending {
    /// True if the program ended by itself with exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}
