//! The server with a scripted engine: wire formats, limits, cancellation, real clients.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod agents;
mod cancel;
mod choices;
mod client;
mod endpoints;
mod fields;
mod fuzz;
mod limits;
mod script;
mod sessions;
mod stop;
mod tools;
