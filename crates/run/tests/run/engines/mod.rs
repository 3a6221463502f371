//! Engines that share nothing with the embedded ones' internals: what the contracts promise must be enough for a run.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

pub(crate) mod byte_trainer;
pub(crate) mod extras;
pub(crate) mod factory;
pub(crate) mod folder_sampler;
