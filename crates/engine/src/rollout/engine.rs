use std::future::Future;
use std::time::Duration;

use rloom_core::{OnUpdate, PolicyId, PolicyVersion, RandomKey};

use super::capabilities::RolloutCapabilities;
use super::status::{RequestTimes, RolloutStatistics, WorkerStatus};
use super::{GenerateRequest, Generation, RolloutError};
use crate::{PolicyLabel, PublishedPolicy};

/// Selects requests to abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// All requests, waiting or in flight.
    All,
    /// The requests of one group.
    Group(u64),
    /// The requests with this key.
    Request(RandomKey),
}

impl Abort {
    /// True if a request of this group and key is selected.
    pub fn selects(self, group: Option<u64>, key: RandomKey) -> bool {
        match self {
            Self::All => true,
            Self::Group(aborted) => group == Some(aborted),
            Self::Request(aborted) => key == aborted,
        }
    }
}

/// Load of an engine, as reported by all of its workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Loaded weights, one entry per policy: the oldest version that any worker still uses. Empty before the first
    /// load and after a release.
    pub loaded: Vec<PolicyLabel>,
    /// Requests whose tokens are being computed.
    pub running: usize,
    /// Requests that wait for blocks, for a place in a batch, or for weights.
    pub waiting: usize,
    /// Key-value blocks in use.
    pub used_blocks: usize,
    /// All key-value blocks.
    pub blocks: usize,
}

impl Health {
    /// Loaded version of a policy.
    pub fn version(&self, policy: PolicyId) -> Option<PolicyVersion> {
        self.loaded.iter().find(|label| label.policy == policy).map(|label| label.version)
    }
}

/// Turns prompts into tokens.
///
/// Token ids go in and come out; an engine knows nothing of tasks, rewards or text (beyond stop strings). A driver keeps
/// any number of requests in flight; batching is up to the engine.
///
/// Implementations guarantee:
///
/// 1. **One answer per request.** Every future completes, with a [`Generation`] or an error, no later than the
///    request's timeout, also if the engine dies or hangs meanwhile. If the same request may be submitted again, the
///    error says so ([`RolloutError::is_retryable`]).
/// 2. **Dropping a future cancels its request.**
/// 3. **Tokens name their weights.** Each token carries the policy and version that sampled it. Requests wait while no
///    weights are loaded.
/// 4. **Full-softmax log-probabilities** at the reported temperature, regardless of top-k, top-p and min-p.
///
/// Every method acts when it is called; the future it returns only waits for the result.
///
/// The methods return `impl Future + Send` rather than being `async fn` behind the `async_trait` macro: the native form
/// needs no allocation and no dependency, and callers are generic over the engine they drive. A driver that chooses an
/// engine at run time wraps the closed set of engines in an enum.
pub trait RolloutEngine: Send + Sync {
    /// Completes one prompt.
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send;

    /// Loads new weights of a policy: every request submitted from now on starts with them. A newer load or release
    /// supersedes one that is still pending, and both complete with it. Completes when older weights of the policy are
    /// no longer in use, which with [`OnUpdate::Finish`] is when the completions in flight have ended.
    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send;

    /// Releases all weights once in-flight completions have finished, so that their owner may write to them in place
    /// or use the memory. Requests submitted from now on wait for the next [`load`](Self::load).
    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send;

    /// Aborts requests; each returns the tokens it has, with
    /// [`StopReason::Aborted`](rloom_core::StopReason::Aborted). Completes when they have been answered.
    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send;

    /// Queries every worker of the engine.
    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send;

    /// Properties of the engine. They do not change while it lives.
    fn capabilities(&self) -> RolloutCapabilities;

    /// Last known state of each worker. Queries no worker, so that one that hangs is reported as well.
    fn workers(&self) -> Vec<WorkerStatus>;

    /// Failures of workers since the last call, for the user. The engine continues with the remaining workers, or tries again.
    fn take_failures(&self) -> Vec<String> {
        Vec::new()
    }

    /// Times of the rollout requests that servers answered since the last call; `None` for engines without servers.
    fn take_request_times(&self) -> Option<RequestTimes> {
        None
    }

    /// Totals since the engine started, as last reported by its workers.
    fn statistics(&self) -> RolloutStatistics;
}
