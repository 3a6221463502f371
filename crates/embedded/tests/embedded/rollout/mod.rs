//! The public interface of the embedded rollout engine: exactness, goldens, conformance and invalid requests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod conformance;
mod exactness;
mod greedy;
mod liars;
mod requests;
mod support;
mod versions;
