//! The public interface of the embedded training engine: conformance, and publication as folders.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod conformance;
mod distillation;
mod folders;
mod liars;
mod model;
mod support;
