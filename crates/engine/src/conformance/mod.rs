//! Conformance suites: the guarantees of [`RolloutEngine`](crate::RolloutEngine) and
//! [`TrainEngine`](crate::TrainEngine), checked on any implementation as far as its capabilities go.
//!
//! A suite returns the first [`Violation`] that it finds. Implementations run it in their tests, and also over engines
//! that break one guarantee each, to show that the suite detects it.

mod progress;
mod rollout;
mod train;

use std::fmt;

pub use rollout::{ReferenceTrainer, RolloutSuite};
pub use train::TrainSuite;

/// A guarantee that an engine does not keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

impl Violation {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// The same violation with the circumstances in front.
    fn during(self, circumstances: impl fmt::Display) -> Self {
        Self(format!("{circumstances}: {}", self.0))
    }
}

/// Result of a check.
type Verdict = Result<(), Violation>;

fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Violation(otherwise())) }
}
