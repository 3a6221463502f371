//! The embedded engine from outside: exactness, goldens, the conformance suite of engines, and what it refuses.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod exactness;
mod greedy;
mod requests;
mod support;
mod versions;
