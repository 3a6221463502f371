//! Continuous batching in this process.
//!
//! ```text
//! generate ──► dispatcher (checked, queued by priority) ──► lane: waiting ──► running ──► Generation
//!                                                                    ▲            │
//!                                                                    └─ preempted ┘  when key-value blocks run out
//! ```
//!
//! A lane is a thread with its own blocks and its own batch. Each of its steps computes one token for every sequence
//! that decodes and a chunk of tokens for those in prefill ([`rloom_model::Model::step`]), and samples the next tokens
//! with each request's [`Sampler`]; without filters, the model's head draws them itself. With
//! [`Speculation`](rloom_engine::Speculation), a step includes the rows of drafted tokens. A lane without work takes
//! requests queued for another lane, or sequences from its batch with their keys and values. Since all kernels are
//! batch-invariant and random numbers are counted by position, scheduling cannot change a result. Every token carries the
//! version of its weights; [`OnUpdate`](rloom_engine::OnUpdate) selects what happens to in-flight sequences when new
//! ones are loaded.

mod batch;
mod blocks;
mod decoder;
mod dispatch;
mod engine;
mod lane;
mod sampling;
mod sequence;
#[cfg(test)]
mod slot_decoder;
mod speculation;
mod status;
mod stop;
mod weights;

pub use engine::{EmbeddedRolloutEngine, cache_shape, lanes};
pub use sampling::{Prediction, SampleScratch, Sampler};
