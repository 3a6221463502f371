//! Identities of processes.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Build of this program: its version and a fingerprint of the sources that both ends share.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("RLOOM_SOURCES"));

/// Role and build that a process states in its handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Role, such as `rank` or `node`.
    pub role: String,
    /// Index within the role.
    pub index: u32,
    /// Epoch of the gang; 0 where there is none.
    pub epoch: u64,
    /// Build of the program ([`BUILD`]).
    pub build: String,
}

impl Identity {
    /// An identity with this program's build.
    pub fn new(role: impl Into<String>, index: u32, epoch: u64) -> Self {
        Self { role: role.into(), index, epoch, build: BUILD.to_owned() }
    }
}

/// An authenticated process at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its identity.
    pub identity: Identity,
    /// Its address.
    pub address: SocketAddr,
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { role, index, epoch, .. } = &self.identity;
        match epoch {
            0 => write!(formatter, "{role} {index} at {}", self.address),
            epoch => write!(formatter, "{role} {index} (epoch {epoch}) at {}", self.address),
        }
    }
}
