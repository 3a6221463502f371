use std::future::Future;
use std::time::Duration;

use rloom_core::{PolicyVersion, RandomKey};
use rloom_model::Weights;

use crate::{GenerateRequest, Generation, RolloutError};

pub use rloom_core::OnUpdate as InFlight;

/// Which requests to abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// All that are waiting or under way.
    All,
    /// Those of one group.
    Group(u64),
    /// Those with this key.
    Request(RandomKey),
}

impl Abort {
    pub(crate) fn concerns(self, group: Option<u64>, key: RandomKey) -> bool {
        match self {
            Self::All => true,
            Self::Group(aborted) => group == Some(aborted),
            Self::Request(aborted) => key == aborted,
        }
    }
}

/// What an engine is doing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Health {
    /// The weights in use; `None` after a release, and before the first load.
    pub version: Option<PolicyVersion>,
    /// Requests whose tokens are being computed.
    pub running: usize,
    /// Requests that wait for blocks, for a place in the batch, or for weights.
    pub waiting: usize,
    /// Key-value blocks in use.
    pub used_blocks: usize,
    /// Key-value blocks in all.
    pub blocks: usize,
}

/// What an engine can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Log-probabilities equal the embedded trainer's bit for bit. Otherwise the difference must be measured.
    pub exact_logprobs: bool,
    /// Results depend on the request alone: not on what shares the batch, nor on threads or memory.
    pub batch_invariant: bool,
    /// Ways to treat completions under way when weights are loaded.
    pub in_flight: &'static [InFlight],
    /// Requests may ask for stop strings.
    pub stop_strings: bool,
    /// Most tokens of prompt and completion together.
    pub context: usize,
}

/// Whoever turns prompts into tokens.
///
/// Tokens go in and come out; an engine knows nothing of tasks, rewards or text (beyond stop strings). A driver keeps
/// as many requests in flight as it likes: batching is the engine's business.
///
/// Implementations promise:
///
/// 1. **One answer per request.** Every future completes, with a [`Generation`] or an error, at the latest when the
///    request's deadline has passed, also when the engine dies or hangs under it. Where the same request may be made
///    again, the error says so ([`RolloutError::is_retryable`]).
/// 2. **Dropping a future cancels its request.**
/// 3. **No results from nowhere.** Each token carries the version of the weights that gave it. Requests wait while no
///    weights are loaded.
/// 4. **Full-softmax log-probabilities** at the reported temperature, whatever top-k, top-p or min-p were in force.
///
/// Every method acts when it is called; the future it returns only waits for the result.
///
/// The methods return `impl Future + Send` rather than being `async fn` behind the `async_trait` macro: the native form
/// needs no allocation and no dependency, and callers are generic over the one engine they drive. A driver that must
/// choose an engine at run time wraps the closed set of them in an enum.
pub trait RolloutEngine: Send + Sync {
    /// Completes one prompt.
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send;

    /// Makes these weights the ones that answer: every request that is made from then on starts with them. A newer load or
    /// release overtakes one that still waits, and both complete with it. Completes when no older ones are in use any more, which with
    /// [`InFlight::Finish`] is when the completions under way have ended.
    fn load(
        &self,
        weights: &Weights,
        in_flight: InFlight,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send;

    /// Lets go of the weights once the completions under way have ended, so that their owner may write to them in
    /// place. Requests made from then on wait for the next [`load`](Self::load).
    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send;

    /// Ends requests early; they answer with [`StopReason::Aborted`](rloom_core::StopReason::Aborted) and the tokens
    /// they have. Completes when they have been answered.
    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send;

    /// What the engine is doing, asked of every part of it that works on its own.
    fn health(&self, deadline: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send;

    /// What the engine can do.
    fn capabilities(&self) -> Capabilities;
}
