//! Processes of a run on its machines.
//!
//! ```text
//! controller ── wire ──► node daemon ── socket pair ──► guard ──► program and its children (a process group)
//! ```
//!
//! - The **controller** holds a [`Node`] for each machine and starts [`Process`]es there. [`Node::local`] launches the
//!   daemon of its own machine; daemons that others start dial in to a [`NodeListener`].
//! - The **daemon** ([`daemon::run`], `rloom node`) keeps the end of each program's output and reports exits. When the
//!   controller is gone (end of the connection, or its lease), it ends everything it started.
//! - A **guard** ([`guard::run`]) is a small process of this binary that starts one program in a group of its own. When
//!   its socket closes, because the daemon closed it or died, the guard kills the group.
//!
//! On Linux the guard is the reaper of its descendants, so those that left the group are killed, too, and
//! the program receives SIGKILL when its guard dies. Elsewhere the daemon kills the group of a guard that died.
//!
//! A Ctrl-C in a terminal reaches the controller alone: the daemon that it launched, guards and programs have groups of
//! their own.
//!
//! On other machines, programs that listen on loopback are reached through a [`Relay`], and those that listen on the
//! address of [`NodeOffer`] directly. A node whose link is cut is lost at both ends after [`rloom_wire::Options::lease`]: the
//! controller's calls fail and its relays close, the daemon kills its programs and ends with an error.

pub mod daemon;
mod error;
mod exit;
pub mod guard;
mod guarded;
mod lines;
mod listener;
mod local;
mod local_node;
mod log_file;
mod machines;
mod message;
mod mirror;
mod node;
mod offer;
mod ports;
mod process;
mod ray;
mod relay;
mod settings;
mod small_file;
mod spec;
mod tail;

pub use error::ClusterError;
pub use exit::Exit;
pub use listener::NodeListener;
pub use local::LocalOptions;
pub use machines::{JoinStatus, Machines, Member};
pub use mirror::{
    MirrorCopy, MirrorFile, MirrorLease, MirrorOrder, MirrorSettings, MirrorSource, MirrorWeights, Mirrors,
};
pub use node::{Node, RunningProcess};
pub use offer::{NodeOffer, gpus, hostname};
pub use process::Process;
pub use relay::Relay;
pub use rloom_core::Program;
pub use settings::{ClusterSettings, InvalidKey, Launcher, PlacementStrategy};
pub use spec::ProcessSpec;
