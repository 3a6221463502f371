use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Processor time of each process.
    pub cpu: Duration,
    /// Time until the end of the program.
    pub wall: Duration,
    /// Memory of all processes together, in bytes. Each process is limited to it by the kernel; the sum is measured.
    pub memory: u64,
    /// Bytes of standard output and of standard error, each.
    pub output: u64,
    /// Bytes of all files together.
    pub disk: u64,
    /// Number of files and folders.
    pub files: u64,
    /// Number of processes and threads.
    pub processes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_secs(5),
            wall: Duration::from_secs(10),
            memory: 1 << 30,
            output: 1 << 20,
            disk: 64 << 20,
            files: 4096,
            processes: 64,
        }
    }
}
