//! Tools: results, failures and limits.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod functions;
mod mcp;
mod mcp_http;
mod real_servers;
mod search;
mod support;
mod toolboxes;
