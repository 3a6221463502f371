//! Generation: from prompts to tokens.

mod capabilities;
mod engine;
mod engine_settings;
mod error;
mod request;
mod router;
mod settings;
mod status;
mod stream;

pub use capabilities::{RolloutCapabilities, VersionGranularity};
pub use engine::{Abort, Health, RolloutEngine};
pub use engine_settings::{RolloutEngineSettings, ServerSettings, TensorParallel, WeightTransfer};
pub use error::{InvalidReason, RequestName, RolloutError, WaitedFor, WorkerFailure};
pub use request::{GenerateRequest, Generation};
pub use router::PolicyRouter;
pub use settings::{
    RolloutQuantization, RolloutSettings, SamplingSettings, Speculation, inverse_temperature,
};
pub use status::{
    DraftStatistics, RequestTime, RequestTimes, RolloutStatistics, WorkerActivity, WorkerStatus,
};
pub use stream::{ReusedTokens, SampledToken, TokenSink};

/// Submits all requests at once and returns the completions in order. The first error cancels the others.
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
