//! Copies of published weights on the nodes.
//!
//! ```text
//! share ──► first node ──► second ──► …        a file at a time, in pieces of 4 MiB
//!                      └─► third  ──► …        the difference to the last version where both nodes have it
//! ```
//!
//! A node copies a version once, to a private folder in its memory file system, and its inference servers load it from
//! there. The first node reads the share, checks the tensors and lists the files with their sizes and CRC-32C; the others
//! get the files from a node that has them ([`Mirrors`] assigns it), and the share if that fails. Every copy has the
//! contents of the first one, however it came.
//!
//! A node that has the last version asks for the difference to it. Its parent, if it has the same two versions, encodes
//! a delta once: XOR of the tensors' bytes, sorted by their place in the element and compressed. The node keeps it for
//! those that ask in turn. Files with other tensors than before, and deltas that are not smaller, are replaced by the
//! full files.
//!
//! The daemon that the controller starts on its own machine has a token of its own: it reads the share, and exchanges
//! nothing with others.
//!
//! The controller sees names, sizes and digests of the files, never their contents.

mod block;
mod copy;
mod delta;
mod failure;
mod fetch;
mod keeper;
mod manifest;
#[cfg(test)]
mod measures;
mod message;
mod node;
mod serve;
mod store;
mod tensors;
mod tree;
mod version;

pub(crate) use keeper::Keeper;
pub use manifest::MirrorFile;
pub(crate) use message::{MirrorCommand, MirrorEvent};
pub use message::{MirrorCopy, MirrorOrder, MirrorSource};
pub use tree::{MirrorLease, MirrorSettings, MirrorWeights, Mirrors};
