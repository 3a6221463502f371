//! What a policy is to whoever trains it.
//!
//! [`TrainEngine`] yields per-token scores and takes their coefficients back; [`EmbeddedTrainEngine`] does so with the
//! transformer of `rloom-model`. Packing turns trajectories into unpadded micro-batches as a function of the data
//! alone, so that the bytes of a gradient do not depend on the machine.

mod division;
mod embedded;
mod engine;
mod error;
mod even;
mod pack;
mod settings;

pub use embedded::EmbeddedTrainEngine;
pub use engine::{LossFn, LossReport, OptimStep, StepReport, TrainEngine, Which};
pub use error::TrainError;
pub use pack::{PackedBatch, pack, pack_unshared};
pub use settings::TrainSettings;
