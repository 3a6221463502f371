//! The training API over a small model: wire, order, losses, checkpoints, limits, real clients.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod adapters;
mod agents;
mod checkpoints;
mod client;
mod fuzz;
mod limits;
mod loops;
mod order;
mod sampling;
mod server;
