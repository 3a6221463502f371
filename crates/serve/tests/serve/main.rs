//! The server with a scripted engine: wire formats, limits, cancellation, real clients.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod agents;
mod cancel;
mod client;
mod endpoints;
mod fields;
mod fuzz;
mod limits;
mod script;
mod stop;
mod tools;
