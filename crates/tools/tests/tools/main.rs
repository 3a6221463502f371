//! Tools: results, failures and limits.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod functions;
mod mcp;
mod real_servers;
mod support;
