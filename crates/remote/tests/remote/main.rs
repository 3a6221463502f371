//! Tests of the pool over stand-ins of inference servers, and of gangs of PyTorch ranks.

#![expect(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod conformance;
mod faults;
mod fields;
mod gang;
mod real_vllm;
mod stand_in;
mod support;
