//! Golden numbers, properties, identities and learning.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod advantages;
mod differences;
mod goldens;
mod identities;
mod learning;
mod refusals;
mod settings;
mod show;
mod splits;
mod step;
