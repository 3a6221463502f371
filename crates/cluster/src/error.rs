//! Errors of nodes and their processes.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use miette::Diagnostic;
use rloom_wire::WireError;

use crate::exit::Exit;

/// Failures of nodes and their processes.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[non_exhaustive]
pub enum ClusterError {
    /// The connection between controller and daemon failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Wire(#[from] WireError),
    /// The daemon of this machine could not be started.
    #[error("could not start the node daemon: {source}")]
    Launch {
        /// The system's error.
        source: io::Error,
    },
    /// The daemon of this machine ended before it connected.
    #[error("the node daemon of this machine {exit}")]
    DaemonEnded {
        /// Its end.
        exit: Exit,
    },
    /// The daemon of this machine did not connect in time.
    #[error("the node daemon of this machine did not connect within {} s", timeout.as_secs_f64())]
    DaemonSilent {
        /// The time allowed.
        timeout: Duration,
    },
    /// The connection to a node ended; all of its processes end with it.
    #[error("{source}; its processes are lost")]
    NodeLost {
        /// The end of the connection.
        #[diagnostic_source]
        source: WireError,
    },
    /// The daemon of this machine ended; all of its processes end with it.
    #[error("the daemon of {node} {exit}")]
    NodeEnded {
        /// The node.
        node: String,
        /// The end of the daemon.
        exit: Exit,
    },
    /// Not all daemons have connected in time.
    #[error(
        "{joined} of {nodes} node daemons connected to {address} within {} s; missing: {}{details}",
        timeout.as_secs(),
        listed(missing)
    )]
    #[diagnostic(help(
        "start `rloom node --controller HOST:PORT --index N` on the missing machines with the `RLOOM_TOKEN` of the run, or raise \
         `cluster.join_seconds`"
    ))]
    NodesMissing {
        /// Daemons that have connected.
        joined: usize,
        /// Machines of the run.
        nodes: usize,
        /// Numbers of the missing ones.
        missing: Vec<usize>,
        /// The time allowed.
        timeout: Duration,
        /// Address that the run listens on.
        address: SocketAddr,
        /// What is known about them, a line each.
        details: String,
    },
    /// No daemon has taken the place of one that was lost.
    #[error("no daemon has taken the place of node {machine} within {} s", timeout.as_secs_f64())]
    NotReplaced {
        /// Number of the machine.
        machine: usize,
        /// The time allowed.
        timeout: Duration,
    },
    /// No port of this machine for the connections to a server on another one.
    #[error("could not reserve a port: {source}")]
    Port {
        /// The system's error.
        source: io::Error,
    },
    /// The run was asked to end while it waited for machines.
    #[error("interrupted while the run waited for its machines")]
    Interrupted,
    /// A machine does not see a folder.
    #[error("{hostname} does not see {}: {reason}", folder.display())]
    #[diagnostic(help("set `run.directory` to a folder that all machines see under the same path"))]
    NotShared {
        /// The machine.
        hostname: String,
        /// The folder.
        folder: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A file that proves that a folder is shared could not be written.
    #[error("could not write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher of Ray could not be started.
    #[error("could not start `{} -m rloom.ray`: {source}", python.display())]
    #[diagnostic(help("set `cluster.python` to the interpreter of an environment with `rloom[ray]`"))]
    LaunchRay {
        /// The interpreter.
        python: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Ray cannot keep the daemons running.
    #[error("Ray: {reason}")]
    Ray {
        /// Reason.
        reason: String,
    },
    /// A process could not be started.
    #[error("could not start {process} on {node}: {reason}")]
    NotStarted {
        /// The node.
        node: String,
        /// Name of the process.
        process: String,
        /// The reason.
        reason: String,
    },
    /// A deadline passed.
    #[error("{node}: the deadline to {operation} has passed")]
    Deadline {
        /// The node.
        node: String,
        /// The operation and its object.
        operation: String,
    },
    /// The daemon could not carry out a command.
    #[error("{node}: could not {operation}: {reason}")]
    Refused {
        /// The node.
        node: String,
        /// The operation and its object.
        operation: String,
        /// The reason.
        reason: String,
    },
    /// A relay could not listen.
    #[error("could not relay port {port} of {node}: {source}")]
    Relay {
        /// The node.
        node: String,
        /// The port.
        port: u16,
        /// The system's error.
        source: io::Error,
    },
    /// A process ended that was needed.
    #[error("{process} on {node} {exit}")]
    ProcessEnded {
        /// The node.
        node: String,
        /// Name of the process.
        process: String,
        /// Its end.
        exit: Exit,
    },
}

/// `node 1, node 3`
fn listed(machines: &[usize]) -> String {
    machines.iter().map(|machine| format!("node {machine}")).collect::<Vec<_>>().join(", ")
}
