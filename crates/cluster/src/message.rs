//! Messages between controller and daemon, and between daemon and guard.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::mirror::{MirrorCommand, MirrorEvent};
use crate::offer::NodeOffer;
use crate::spec::ProcessSpec;

/// Commands of the controller. The job of a frame is the number of the process, or of the request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeCommand {
    /// Starts a process. With `stdio`, its standard input and output are a connection with the role `relay` and that index.
    Start { spec: ProcessSpec, stdio: Option<u32> },
    /// Asks a process to end, and kills its group after the grace period.
    Stop { process: u64, grace_ms: u64 },
    /// Sends a signal to the program alone.
    Signal { process: u64, signal: i32 },
    /// Requests the end of the output.
    Output { process: u64 },
    /// Requests a port that is free on the node's loopback interface.
    FreePort,
    /// Requests what the node offers.
    Describe,
    /// Requests a connection with the role `relay` and the index `connection`, from a port of the node's loopback
    /// interface. The events are `NotRelayed` and `RelayEnded`.
    Relay { connection: u32, port: u16 },
    /// Requests the content of a small file.
    ReadFile { path: PathBuf },
    /// Work on copies of weights.
    Mirror(MirrorCommand),
}

/// Reports of the daemon; the job of a frame is that of the command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeEvent {
    /// The program runs.
    Started { pid: i32 },
    /// The program could not be started.
    NotStarted { reason: String },
    /// The process and its group have ended.
    Exited(Exit),
    /// The end of the output.
    Output { text: String },
    /// A free port.
    FreePort { port: u16 },
    /// What the node offers.
    Described(NodeOffer),
    /// A relayed connection could not be opened.
    NotRelayed { connection: u32 },
    /// The program ended its direction of a relayed connection.
    RelayEnded { connection: u32 },
    /// The content of a file.
    File { content: Vec<u8> },
    /// Work on copies of weights.
    Mirror(MirrorEvent),
    /// A request could not be fulfilled.
    Refused { reason: String },
}

/// Commands of the daemon to a guard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuardCommand {
    /// Starts the program; the first command. If its input and output are relayed, they are the guard's standard output. A
    /// daemon that is silent for longer than the lease counts as gone.
    Start { spec: ProcessSpec, is_relayed: bool, lease_ms: u64 },
    /// Shows that the daemon watches its controller.
    Beat,
    /// Sends SIGTERM to the group, and SIGKILL after the grace period.
    Stop { grace_ms: u64 },
    /// Sends a signal to the program.
    Signal { signal: i32 },
}

/// Reports of a guard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuardEvent {
    /// The program runs; its process id is that of the group.
    Started { pid: i32 },
    /// The program could not be started.
    NotStarted { reason: String },
    /// The program has ended and the group was killed.
    Exited(Exit),
}
