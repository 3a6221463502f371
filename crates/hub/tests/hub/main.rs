//! Downloads from a hub emulated on this machine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cache;
mod datasets;
mod models;
mod python;
mod server;
