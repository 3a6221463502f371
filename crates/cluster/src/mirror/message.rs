//! Messages about copies: between controller and daemon, and between daemons.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::failure::MirrorFailure;
use super::manifest::MirrorFile;

/// Commands of the controller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MirrorCommand {
    /// Makes a copy of a version, unless there is one.
    Copy(MirrorOrder),
    /// Drops all versions but these.
    Forget { keep: Vec<String> },
    /// Lets other daemons fetch versions, over `address` or that of the route to the controller.
    Serve { address: Option<IpAddr> },
}

/// Reports of the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MirrorEvent {
    /// A version is complete.
    Copied(MirrorCopy),
    /// The versions that are left.
    Kept { versions: Vec<String> },
    /// Other daemons are served here.
    Serving { address: SocketAddr },
    /// A command could not be carried out.
    Failed(MirrorFailure),
}

/// A version that a node copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorOrder {
    /// Name of the version: letters, digits, `-`, `_` and `.`.
    pub version: String,
    /// The published folder on the share.
    pub source: PathBuf,
    /// Digest of the folder's tensors ([`rloom_engine::WeightDigest`]), if they are all that it was computed from.
    pub digest: Option<u64>,
    /// The files of the version, once a node has read them. A copy of other contents is refused.
    pub files: Option<Vec<MirrorFile>>,
    /// Daemons that have the version, in the order in which they are asked before the share is read.
    pub parents: Vec<SocketAddr>,
    /// Versions that are kept; all others are dropped first.
    pub keep: Vec<String>,
    /// Earlier version of which a delta is asked for, if this node has it.
    pub base: Option<String>,
    /// File systems in the order of preference; none for the memory file system and the temporary directory.
    pub places: Vec<PathBuf>,
    /// Longest time of the copy in milliseconds.
    pub timeout_ms: u64,
    /// Longest time with one parent in milliseconds.
    pub parent_ms: u64,
}

/// A complete copy on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorCopy {
    /// The folder.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<MirrorFile>,
    /// Origin of the copy.
    pub from: MirrorSource,
    /// Bytes that were read from the share or came from the parent.
    pub received: u64,
    /// Parents that failed, with the reason.
    pub failed: Vec<(SocketAddr, String)>,
}

/// Origin of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MirrorSource {
    /// The node had the version.
    Held,
    /// The share.
    Share,
    /// Another node, in full.
    Peer(SocketAddr),
    /// Another node, by the difference to the base.
    Delta(SocketAddr),
}

/// Requests of a daemon to another one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerRequest {
    /// Asks for a version, by its difference to the base where there is one.
    Fetch { version: String, base: Option<Base> },
}

/// A version that the asking daemon has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Base {
    pub(super) version: String,
    pub(super) files: Vec<MirrorFile>,
}

/// Replies to [`PeerRequest`]. The contents follow `Files` in the order of its list, in frames with one tensor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerReply {
    /// The contents of the version, and their form.
    Files { files: Vec<SentFile> },
    /// A piece of the contents.
    Data,
    /// The version is not here.
    Refused { reason: String },
}

/// A file on its way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SentFile {
    pub(super) file: MirrorFile,
    pub(super) form: SentForm,
}

/// Form of a file on its way.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SentForm {
    Full,
    /// Nothing is sent: the base has the same file.
    Same,
    /// A delta of this size and CRC-32C.
    Delta {
        bytes: u64,
        crc: u32,
    },
}

/// Name of the tensor with the contents of a `Data` frame.
pub(super) const CONTENTS: &str = "contents";

/// True for a name that can be that of a folder.
pub(super) fn is_version(name: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_known)
}
