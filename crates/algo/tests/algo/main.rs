//! Golden numbers, properties, identities and learning.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod advantage_properties;
mod advantages;
mod agents;
mod controls;
mod differences;
mod distillation;
mod estimators;
mod every_key;
mod filters;
mod golden_advantages;
mod goldens;
mod groups;
mod held;
mod identities;
mod inert;
mod learning;
mod loss_step;
mod losses;
mod messages;
mod metrics;
mod page_examples;
mod pages;
mod preferences;
mod python;
mod refusals;
mod rewards;
mod segments;
mod settings;
mod show;
mod splits;
mod stale;
mod step;
