//! Turning scored tokens into new weights.

mod engine;
mod error;
mod even;
mod pack;
mod settings;

pub use engine::{LossFn, LossReport, OptimStep, StepReport, TrainEngine, Which};
pub use error::TrainError;
pub use pack::{PackedBatch, pack, pack_unshared};
pub use settings::TrainSettings;
