//! Contracts of the engines: [`RolloutEngine`] turns prompts into tokens, [`TrainEngine`] turns scored tokens into new
//! weights.
//!
//! The crate defines the traits, the data that crosses them, their settings, and the packing of trajectories into
//! micro-batches. It contains no implementation: the in-process engines are in `rloom-embedded`.

mod rollout;
mod train;

pub use rollout::{
    Abort, Capabilities, GenerateRequest, Generation, Health, InFlight, RequestName, RolloutEngine,
    RolloutError, RolloutSettings, SamplingSettings, Speculation, generate_all, inverse_temperature,
};
pub use train::{
    LossFn, LossReport, OptimStep, PackedBatch, StepReport, TrainEngine, TrainError, TrainSettings, Which,
    pack, pack_unshared,
};
