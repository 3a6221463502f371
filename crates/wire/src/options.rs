//! Limits and intervals of connections.

use std::time::Duration;

/// Limits and intervals of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Interval between two beats.
    pub beat: Duration,
    /// Longest silence of a peer before it counts as lost.
    pub lease: Duration,
    /// Longest handshake.
    pub handshake: Duration,
    /// Largest frame in bytes.
    pub frame_bytes: u64,
    /// Bytes of received frames at which no more are read until `receive` takes one.
    pub queue_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(1),
            lease: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            frame_bytes: 4 << 30,
            queue_bytes: 256 << 20,
        }
    }
}
