//! Whoever turns prompts into tokens: the [`RolloutEngine`] trait and the [`EmbeddedEngine`].
//!
//! Token ids go in; token ids, their log-probabilities and the versions of the weights that chose them come out. The way
//! of a request through the embedded engine:
//!
//! ```text
//! generate ──► board (checked, queued by priority) ──► lane: waiting ──► running ──► Generation
//!                                                               ▲            │
//!                                                               └─ put back ─┘  when key-value blocks run out
//! ```
//!
//! A lane is a thread with its own blocks and its own batch. Each of its steps computes one token for every sequence
//! that decodes and a chunk of tokens for those that are being prefilled ([`rloom_model::Model::step`]), and chooses the
//! next tokens as each request's [`Sampler`] says: where nothing is filtered, the model's head draws them itself. With
//! [`Speculation`], the rows of drafted tokens are among them. A lane that runs dry takes requests that wait for another
//! one, or sequences out of its batch with their keys and values. Since all kernels are batch-invariant and random numbers
//! are counted by position, none of the scheduling can change a result. Every token carries the version of its weights:
//! [`InFlight`] says what becomes of sequences under way when new ones are loaded.

mod batch;
mod blocks;
mod decoder;
mod dispatch;
mod embedded;
mod engine;
mod error;
mod lane;
mod report;
mod request;
mod sampling;
mod sequence;
mod settings;
mod speculation;
mod stop;

pub use batch::Statistics;
pub use embedded::EmbeddedEngine;
pub use engine::{Abort, Capabilities, Health, InFlight, RolloutEngine};
pub use error::{RequestName, RolloutError};
pub use report::{Doing, LaneReport};
pub use request::{GenerateRequest, Generation};
pub use sampling::{Given, SampleScratch, Sampler};
pub use settings::{RolloutSettings, SamplingSettings, Speculation, inverse_temperature};

/// Completes all requests together, in their order. The first error cancels the others.
pub async fn generate_all<E: RolloutEngine>(
    engine: &E,
    requests: impl IntoIterator<Item = GenerateRequest>,
) -> Result<Vec<Generation>, RolloutError> {
    // Each call queues its request, so awaiting them one after the other costs no concurrency.
    let futures: Vec<_> = requests.into_iter().map(|request| engine.generate(request)).collect();
    let mut generations = Vec::with_capacity(futures.len());
    for future in futures {
        generations.push(future.await?);
    }
    Ok(generations)
}
