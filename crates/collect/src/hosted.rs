//! Episodes of agents that run outside of this program: they call the policy over HTTP, and an [`AgentHost`] returns what
//! was sampled.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rloom_core::{PolicyId, RandomKey, SampleKey, Task, Trajectory};
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutError, SamplingSettings};
use rloom_env::{BoxFuture, EnvError, Environment};

use crate::bounded::BoundedEngine;
use crate::completion::complete;
use crate::stopping::Stopping;

/// An environment whose episodes are played by programs outside.
pub trait AgentHost: Environment {
    /// Has an agent attempt a task. Returns the segments of the episode; the rewards that the agent reported are step rewards.
    /// Dropping the future ends the agent.
    fn run<'a>(&'a self, episode: HostedEpisode<'a>) -> BoxFuture<'a, Result<Vec<Trajectory>, EnvError>>;

    /// What the agent of an episode is doing, for a report of what a run waits for.
    fn activity_of(&self, key: SampleKey) -> Option<String>;
}

/// Inputs of an episode that an agent plays.
#[derive(Debug)]
pub struct HostedEpisode<'a> {
    /// The task to attempt.
    pub task: &'a Task,
    /// Key of the first segment.
    pub key: SampleKey,
    /// Random streams of the first segment; those of others differ in the index of the segment.
    pub random: RandomKey,
    /// Samples from the policy.
    pub sampler: HostedSampler,
    /// Sampling settings.
    pub sampling: &'a SamplingSettings,
    /// The policy that is sampled.
    pub policy: PolicyId,
    /// Requests of one group may share the computation of their prompt.
    pub group: Option<u64>,
    /// Priority of the requests; lower numbers go first.
    pub priority: u64,
}

type Generate = dyn Fn(GenerateRequest) -> BoxFuture<'static, Result<Generation, RolloutError>> + Send + Sync;

/// Samples completions for an episode. A request waits for a place in the engine, and continues after weight updates and lost
/// workers, so that its tokens may be of several versions.
#[derive(Clone)]
pub struct HostedSampler {
    generate: Arc<Generate>,
    failure: Arc<Mutex<Option<RolloutError>>>,
}

impl fmt::Debug for HostedSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostedSampler")
    }
}

impl HostedSampler {
    pub(crate) fn new<E: RolloutEngine + 'static>(
        engine: &Arc<BoundedEngine<E>>,
        stopping: &Arc<Stopping>,
        priority: u64,
        timeout: Duration,
    ) -> Self {
        let (engine, stopping) = (Arc::clone(engine), Arc::clone(stopping));
        Self::of(move |request| {
            let (engine, stopping) = (Arc::clone(&engine), Arc::clone(&stopping));
            Box::pin(async move {
                let _place = engine.place(priority).await;
                let request = GenerateRequest { priority, timeout: Some(timeout), ..request };
                complete(&engine, &stopping, request, None, &|_| {}).await
            })
        })
    }

    /// A sampler that calls a function.
    pub fn of(
        generate: impl Fn(GenerateRequest) -> BoxFuture<'static, Result<Generation, RolloutError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { generate: Arc::new(generate), failure: Arc::default() }
    }

    /// Samples a completion. Dropping the future cancels it. The request's sink receives each token once.
    pub async fn generate(self, request: GenerateRequest) -> Result<Generation, RolloutError> {
        let is_streamed = request.sink.is_some();
        let result = (self.generate)(request).await;
        // A stream that cannot be continued is broken off for the agent, which is attempted again; the engine works.
        if let Err(error) = &result
            && !matches!(error, RolloutError::InvalidRequest { .. })
            && !(is_streamed && error.is_retryable())
        {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error.clone());
        }
        result
    }

    /// The first failure of the engine. What follows in the agent is its consequence.
    pub(crate) fn failure(&self) -> Option<RolloutError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
