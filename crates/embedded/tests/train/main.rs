//! The embedded engine over policies, value heads and critics.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod groups;
mod inert;
mod policy;
mod sharing;
mod step_scope;
mod support;
mod value;
