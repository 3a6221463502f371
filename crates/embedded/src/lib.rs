//! The in-process engines: [`EmbeddedRolloutEngine`] samples from and [`EmbeddedTrainEngine`] trains the transformers of
//! `rloom-model`.
//!
//! Both compute a log-probability with the same kernels in the same order, so the log-probability of a sampled token is
//! bitwise identical to the one that training computes for it. Weights pass from one to the other as a shared handle on
//! a [`Model`](rloom_model::Model); nothing is copied.

mod lora;
mod publish;
mod rollout;
mod train;

pub use lora::{adapted, lora_config};
pub use publish::{digest, model_of, publish_model, publish_packed};
pub use rollout::{EmbeddedRolloutEngine, Prediction, SampleScratch, Sampler, cache_shape, lanes};
pub use train::{EmbeddedTrainEngine, model_checkpointing};
