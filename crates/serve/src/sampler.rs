//! The engine behind a server as an object: the server is compiled once, for all engines.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutError};

/// Future of a completion.
pub type Completion = Pin<Box<dyn Future<Output = Result<Generation, RolloutError>> + Send>>;
/// Future of a check.
pub type Check = Pin<Box<dyn Future<Output = Result<(), RolloutError>> + Send>>;

/// Completes prompts: an engine, or a part of a run that continues completions after weight updates and lost workers.
pub trait Sampler: Send + Sync {
    /// Submits a request when it is first polled. Dropping the future cancels it.
    ///
    /// The tokens that the request's sink receives are the first ones of the completion. An implementation that samples a
    /// completion again must not send other tokens: it fails with a retryable error instead, if any were sent. Calls that are
    /// not streamed have no sink.
    fn generate(self: Arc<Self>, request: GenerateRequest) -> Completion;

    /// Succeeds if the engine works.
    fn check(self: Arc<Self>, timeout: Duration) -> Check;
}

impl<E: RolloutEngine + 'static> Sampler for E {
    fn generate(self: Arc<Self>, request: GenerateRequest) -> Completion {
        Box::pin(async move { RolloutEngine::generate(&*self, request).await })
    }

    fn check(self: Arc<Self>, timeout: Duration) -> Check {
        Box::pin(async move { self.health(timeout).await.map(drop) })
    }
}
