//! The training API of the public `tinker` SDK over the in-process engines, as an extension of the HTTP server of
//! `rloom-serve`.
//!
//! ```text
//! request ──► api: route, checks, order of the model's requests ──► trainer: one thread, all models
//!    │                                                                  │
//!    └─ future's identifier             retrieve_future ◄── futures ◄───┤
//!                                                                       │
//!            sampling: engines with published weights ◄── snapshots ◄───┘
//! ```
//!
//! * **Order.** A client numbers a model's requests. They are executed in that order, each once, whatever arrives first or twice.
//! * **Losses** are those of `rloom-algo`, as sums over all tokens; log-probabilities of samples are bitwise identical to those that
//!   training computes with the same weights.
//! * **Weights.** Clients train adapters over one base, which is never copied; or, if the server is told so, all weights.
//! * **Limits.** Sessions, models, samplers, results and the bytes that wait are bounded. A session whose client is silent ends, and
//!   its models are freed.

mod adapter;
mod api;
mod base;
mod batch;
mod checkpoints;
mod engines;
mod error;
mod futures;
mod loss;
mod order;
mod problem;
mod registry;
mod sampling;
mod settings;
mod shared;
mod time;
mod trained;
mod trainer;
mod version;
mod wire;

pub use api::TrainApi;
pub use base::BaseModel;
pub use error::TrainApiError;
pub use settings::{TrainApiSettings, TrainedWeights};
