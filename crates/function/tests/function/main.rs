//! Functions in processes: programs, Python, HTTP servers and sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test says that it is skipped")]

mod commands;
mod hosts;
mod http;
mod pythons;
mod sessions;
mod sockets;
mod support;
