//! Runs on two nodes in network namespaces, each with a link of its own to the controller in a third one: learning with vLLM,
//! failures of nodes, links, clocks and disks, and a soak. `.ci/cluster` runs them: they need root, `ip`, and the interpreters
//! `RLOOM_TEST_PYTHON` and, for vLLM, `RLOOM_TEST_VLLM`.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints its measurements"
)]

mod clocks;
mod disks;
mod learning;
mod links;
mod network;
mod ray;
mod soak;
mod stops;
