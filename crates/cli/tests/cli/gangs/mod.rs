//! Runs on PyTorch ranks: processes that die or hang, full disks, methods in Python, preferences, adapters, reward models, and vLLM
//! servers. The tests need `RLOOM_TEST_PYTHON`, an interpreter with torch, transformers and rloom, and run with `--ignored`.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports its kills"
)]

mod adapters;
mod deaths;
mod methods;
mod nodes;
mod preferences;
mod reward_models;
pub(crate) mod run;
mod servers;
