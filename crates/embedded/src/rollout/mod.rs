//! Continuous batching in this process.
//!
//! Token ids go in; token ids, their log-probabilities and the versions of the weights that chose them come out. The way
//! of a request through the embedded engine:
//!
//! ```text
//! generate ──► dispatcher (checked, queued by priority) ──► lane: waiting ──► running ──► Generation
//!                                                               ▲            │
//!                                                               └─ put back ─┘  when key-value blocks run out
//! ```
//!
//! A lane is a thread with its own blocks and its own batch. Each of its steps computes one token for every sequence
//! that decodes and a chunk of tokens for those that are being prefilled ([`rloom_model::Model::step`]), and chooses the
//! next tokens as each request's [`Sampler`] says: where nothing is filtered, the model's head draws them itself. With
//! [`Speculation`](rloom_engine::Speculation), the rows of drafted tokens are among them. A lane that runs dry takes requests that wait for another
//! one, or sequences out of its batch with their keys and values. Since all kernels are batch-invariant and random numbers
//! are counted by position, none of the scheduling can change a result. Every token carries the version of its weights:
//! [`OnUpdate`](rloom_engine::OnUpdate) says what becomes of sequences under way when new ones are loaded.

mod batch;
mod blocks;
mod decoder;
mod dispatch;
mod engine;
mod lane;
mod sampling;
mod sequence;
mod speculation;
mod status;
mod stop;
mod weights;

pub use engine::{EmbeddedRolloutEngine, cache_shape};
pub use sampling::{Prediction, SampleScratch, Sampler};
