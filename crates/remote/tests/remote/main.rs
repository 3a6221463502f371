//! Tests of the pool over stand-ins of inference servers.

#![expect(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod conformance;
mod faults;
mod fields;
mod real_vllm;
mod stand_in;
mod support;
