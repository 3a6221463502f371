//! Environments, and what is made of them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail loudly too")]

mod attempts;
mod conforming;
mod demonstrations;
mod guess;
mod settings;
mod support;
