//! The model from outside: against PyTorch and transformers, against finite differences, against itself, and with
//! files as they come.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod config;
mod decode;
mod files;
mod finite_differences;
mod golden;
mod hub;
mod optimizer;
mod reference;
mod shared;
mod value;
