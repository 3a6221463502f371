//! Errors of connections and frames.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use miette::Diagnostic;
use safetensors::Dtype;

use crate::progress::Progress;

/// Failures of connections. `peer` is role, index and address, or the address alone before a handshake.
#[derive(Debug, Clone, thiserror::Error, Diagnostic)]
#[non_exhaustive]
pub enum WireError {
    /// The environment contains no token.
    #[error("the environment variable RLOOM_TOKEN is not set")]
    #[diagnostic(help(
        "set it to the token of the run, which the process that listens has in its environment"
    ))]
    TokenMissing,
    /// The token is too short.
    #[error("the token of the run has fewer than {shortest} characters")]
    #[diagnostic(help(
        "set RLOOM_TOKEN to a long random text, such as the output of `openssl rand -hex 32`"
    ))]
    TokenShort {
        /// Fewest characters.
        shortest: usize,
    },
    /// The system has no random numbers.
    #[error("could not read random numbers: {reason}")]
    Random {
        /// The system's error.
        reason: String,
    },
    /// A thread could not be started.
    #[error("could not start a thread: {source}")]
    Thread {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Listening failed.
    #[error("could not listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Nothing accepts connections at the address.
    #[error("could not connect to {address}: {source}")]
    Unreachable {
        /// The address.
        address: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The peer does not speak this protocol.
    #[error("{peer} does not speak the protocol of this build of rloom")]
    NotRloom {
        /// The peer.
        peer: String,
    },
    /// The peer has another token.
    #[error("{peer} has another token than this process")]
    #[diagnostic(help("set RLOOM_TOKEN of both processes to the same text"))]
    WrongToken {
        /// The peer.
        peer: String,
    },
    /// The peer is another build.
    #[error("{peer} is build {found} of rloom, this process is build {expected}")]
    #[diagnostic(help("install the same build of rloom for both processes"))]
    WrongBuild {
        /// The peer.
        peer: String,
        /// Its build.
        found: String,
        /// This program's build.
        expected: String,
    },
    /// The peer belongs to a gang that was replaced.
    #[error("{peer} belongs to an earlier epoch than {expected}")]
    WrongEpoch {
        /// The peer.
        peer: String,
        /// The current epoch.
        expected: u64,
    },
    /// The handshake was not finished in time.
    #[error("{peer} did not finish the handshake within {} s", timeout.as_secs_f64())]
    HandshakeTimeout {
        /// The peer.
        peer: String,
        /// The time allowed.
        timeout: Duration,
    },
    /// Too many connections were in their handshake.
    #[error("{peer} was refused: {limit} other connections are in their handshake")]
    Crowded {
        /// The peer.
        peer: String,
        /// Largest number of simultaneous handshakes.
        limit: usize,
    },
    /// No peer connected in time.
    #[error("no peer connected to {address} in time{}", refusals(refused))]
    NobodyConnected {
        /// The listening address.
        address: SocketAddr,
        /// Messages of the last refused connections.
        refused: Vec<String>,
    },
    /// A deadline passed.
    #[error("{peer}: the deadline to {operation} a frame has passed; it was last {progress}")]
    Deadline {
        /// The peer.
        peer: String,
        /// `send` or `receive`.
        operation: &'static str,
        /// Progress in its last beat.
        progress: Progress,
    },
    /// The peer was silent for the whole lease.
    #[error("{peer} was silent for {} s; it was last {progress}", lease.as_secs_f64())]
    #[diagnostic(help(
        "look at its machine and at the network: the process hangs as a whole, or the link is cut"
    ))]
    Lease {
        /// The peer.
        peer: String,
        /// The lease.
        lease: Duration,
        /// Progress in its last beat.
        progress: Progress,
    },
    /// The peer closed the connection or its process ended.
    #[error("{peer} closed the connection; it was last {progress}")]
    Closed {
        /// The peer.
        peer: String,
        /// Progress in its last beat.
        progress: Progress,
    },
    /// The stream ended inside a frame.
    #[error("{peer} closed the connection in the middle of a frame; it was last {progress}")]
    Cut {
        /// The peer.
        peer: String,
        /// Progress in its last beat.
        progress: Progress,
    },
    /// The connection was closed by this process.
    #[error("the connection to {peer} is closed")]
    ClosedHere {
        /// The peer.
        peer: String,
    },
    /// A frame is invalid.
    #[error("{peer}: {source}")]
    Frame {
        /// The peer.
        peer: String,
        /// The mistake.
        source: FrameError,
    },
    /// The system refused to send or receive.
    #[error("{peer}: could not {operation}: {source}")]
    Io {
        /// The peer.
        peer: String,
        /// The operation.
        operation: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

fn refusals(refused: &[String]) -> String {
    if refused.is_empty() {
        return String::new();
    }
    format!(" (refused: {})", refused.join("; "))
}

/// Mistakes in a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is larger than the limit.
    #[error("a frame of {bytes} bytes exceeds the limit of {limit}")]
    Size {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The header does not fit its frame or exceeds [`crate::HEADER_BYTES`].
    #[error("a frame has an impossible header size of {bytes} bytes")]
    HeaderSize {
        /// The size.
        bytes: u64,
    },
    /// The header is not valid.
    #[error("a frame has an invalid header: {damage}")]
    Header {
        /// The mistake.
        damage: String,
    },
    /// The bytes end inside the frame.
    #[error("a frame is incomplete")]
    Truncated,
    /// The frame has another purpose than the state of the connection allows.
    #[error("a frame of kind `{found}` is not expected here")]
    Kind {
        /// The kind.
        found: &'static str,
    },
    /// Two tensors share a name, or a name is reserved.
    #[error("the tensor name `{name}` is used twice or reserved")]
    Name {
        /// The name.
        name: String,
    },
    /// A tensor is not in the frame.
    #[error("the frame has no tensor `{name}`")]
    Missing {
        /// The name.
        name: String,
    },
    /// A tensor has another type.
    #[error("the tensor `{name}` has type {found} instead of {expected}")]
    Dtype {
        /// The name.
        name: String,
        /// Its type.
        found: Dtype,
        /// The requested type.
        expected: Dtype,
    },
    /// The message cannot be written or read as JSON of the expected form.
    #[error("the message of a frame is invalid: {reason}")]
    Message {
        /// The parser's error.
        reason: String,
    },
}
