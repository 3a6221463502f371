//! From scored groups to new weights.
//!
//! [`BatchTrainer::train`] performs all steps: it scores the batch with the models that an algorithm needs, converts
//! rewards to advantages, and takes the optimiser steps of every epoch and minibatch. It is generic over the
//! [`TrainEngine`](rloom_engine::TrainEngine); it reads and writes no files.

mod advantages;
mod batch;
mod functions;
mod joint;
mod models;
mod preference;
mod reference;
mod report;
mod reward;
mod rows;
mod scores;
mod validation;

#[cfg(test)]
mod agent_tests;
#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod preference_tests;
#[cfg(test)]
mod validation_tests;

pub use batch::{BatchPosition, BatchTrainer};
pub use functions::{GivenAdvantages, LossDifference, MethodError, MethodFunctions};
pub use models::{FurtherPolicy, Models};
pub use reference::{ReferenceScores, ReferenceUse};
pub use report::{BatchReport, SkippedSteps};
pub use reward::CalibrationBin;
pub use scores::BatchScores;
pub use validation::Validation;
