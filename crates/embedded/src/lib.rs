//! The in-process engines: [`EmbeddedEngine`] samples from and [`EmbeddedTrainEngine`] trains the transformers of
//! `rloom-model`.

mod rollout;
mod train;

pub use rollout::{Doing, EmbeddedEngine, Given, LaneReport, SampleScratch, Sampler, Statistics};
pub use train::EmbeddedTrainEngine;
