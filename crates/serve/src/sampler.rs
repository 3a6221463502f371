//! The engine behind the server as an object: the server is compiled once, for all engines.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutError};

/// Future of a completion.
pub(crate) type Completion = Pin<Box<dyn Future<Output = Result<Generation, RolloutError>> + Send>>;
/// Future of a check.
pub(crate) type Check = Pin<Box<dyn Future<Output = Result<(), RolloutError>> + Send>>;

/// An engine that completes prompts.
pub(crate) trait Sampler: Send + Sync {
    /// Submits a request when it is first polled. Dropping the future cancels it.
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
