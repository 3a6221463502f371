//! A process on a node as the controller sees it.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::error::ClusterError;
use crate::exit::Exit;
use crate::message::NodeCommand;
use crate::node::Node;

/// Longest wait for the command to kill a process whose handle is dropped.
const DROPPING: Duration = Duration::from_secs(1);

/// A process on a node, in a group of its own. It is killed when this handle is dropped.
#[derive(Debug)]
pub struct Process {
    node: Node,
    number: u64,
    name: String,
    pid: i32,
}

impl Process {
    pub(crate) fn new(node: Node, number: u64, name: String) -> Self {
        Self { node, number, name, pid: 0 }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn started(&mut self, pid: i32) {
        self.pid = pid;
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its process id on the node, which is that of its group.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its end; `None` while it runs, an error if the node is lost.
    pub fn exited(&self) -> Result<Option<Exit>, ClusterError> {
        self.node.exit_of(self.number)
    }

    /// Waits for its end.
    pub fn wait(&self, deadline: Instant) -> Result<Exit, ClusterError> {
        self.node.wait_for(self.number, &self.name, deadline)
    }

    /// The end of its standard output and standard error so far.
    pub fn output(&self, deadline: Instant) -> Result<String, ClusterError> {
        self.node.output(self.number, &self.name, deadline)
    }

    /// Resident memory of the program in bytes, where the system tells it.
    pub fn resident_memory(&self, deadline: Instant) -> Option<u64> {
        let status = self.node.read_file(Path::new(&format!("/proc/{}/status", self.pid)), deadline).ok()?;
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    }

    /// Sends SIGTERM to the group, SIGKILL after the grace period, and waits for the end. No grace: SIGKILL at once.
    pub fn stop(&self, grace: Duration, deadline: Instant) -> Result<Exit, ClusterError> {
        self.request_stop(grace, deadline)?;
        self.wait(deadline)
    }

    /// Starts a stop without waiting for the end, so that many processes can stop at once.
    pub fn request_stop(&self, grace: Duration, deadline: Instant) -> Result<(), ClusterError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.node.send(&NodeCommand::Stop { process: self.number, grace_ms }, deadline)
    }

    /// Sends SIGUSR1, on which a Python process with `faulthandler.register` writes the stacks of its threads to its
    /// output. Ends a program that does not handle it.
    pub fn request_stacks(&self, deadline: Instant) -> Result<(), ClusterError> {
        let signal = Signal::SIGUSR1 as i32;
        self.node.send(&NodeCommand::Signal { process: self.number, signal }, deadline)
    }

    /// The error of a process that ended while it was needed.
    pub fn ended(&self, exit: Exit) -> ClusterError {
        ClusterError::ProcessEnded { node: self.node.name(), process: self.name.clone(), exit }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.exited(), Ok(None)) {
            let _ = self.request_stop(Duration::ZERO, Instant::now() + DROPPING);
        }
        self.node.forget(self.number);
    }
}
