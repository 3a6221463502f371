//! The embedded engine over policies, value heads and critics.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod policy;
mod step_scope;
mod support;
mod value;
