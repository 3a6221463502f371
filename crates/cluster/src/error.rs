//! Errors of nodes and their processes.

use std::io;
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
    /// No file system of a node has room for a copy of weights.
    #[error("{node} has no room for the weights {version}: {detail}")]
    MirrorRoom {
        /// The node.
        node: String,
        /// Name of the version.
        version: String,
        /// Need and offers.
        detail: String,
    },
    /// Weights are damaged, or another node has read others from the same folder.
    #[error("{node} refuses the weights {version}: {detail}")]
    MirrorDamaged {
        /// The node.
        node: String,
        /// Name of the version.
        version: String,
        /// The file and the damage.
        detail: String,
    },
}
