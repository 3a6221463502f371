//! Pools over stand-ins, and requests to them.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey};
use rloom_engine::conformance::ReferenceTrainer;
use rloom_engine::{
    GenerateRequest, Generation, PublishedPolicy, PublishedWeights, SamplingSettings, ServerSettings,
};
use rloom_remote::{ModelLimits, PoolTimings, ReplicaPool};

use crate::stand_in::model::{VOCABULARY, Weights, publish};
use crate::stand_in::{CONTEXT, StandIn};

pub(crate) const LIMITS: ModelLimits = ModelLimits { context: CONTEXT, vocabulary: VOCABULARY };

/// Short waits where a stand-in does not answer, long enough for one that does on a busy machine.
pub(crate) fn timings() -> PoolTimings {
    PoolTimings {
        health: Duration::from_millis(500),
        answer: Duration::from_secs(3),
        control: Duration::from_secs(3),
        load: Duration::from_secs(3),
        drain: Duration::from_secs(1),
        backoff: Duration::from_millis(20),
    }
}

pub(crate) fn settings(replicas: usize) -> ServerSettings {
    ServerSettings {
        replicas,
        max_requests: 32,
        restarts: 50,
        replace_seconds: 120.0,
        timeout_seconds: 120.0,
        ..ServerSettings::default()
    }
}

pub(crate) fn pool_of(stand_ins: &[&StandIn], settings: &ServerSettings) -> ReplicaPool {
    pool_with(stand_ins, settings, timings())
}

pub(crate) fn pool_with(
    stand_ins: &[&StandIn],
    settings: &ServerSettings,
    timings: PoolTimings,
) -> ReplicaPool {
    let pool = ReplicaPool::with_timings(LIMITS, settings, None, timings).unwrap();
    for stand_in in stand_ins {
        pool.join(stand_in.server());
    }
    pool
}

/// Runs a future on a runtime that can do nothing but wait.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_mins(20), future).await.expect("never ends") })
}

/// The trainer whose weights stand-ins load.
pub(crate) struct Trainer {
    folder: tempfile::TempDir,
    is_of_adapters: bool,
}

impl Trainer {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), is_of_adapters: false }
    }

    /// A trainer whose versions are adapters.
    pub(crate) fn of_adapters() -> Self {
        Self { is_of_adapters: true, ..Self::new() }
    }

    pub(crate) fn main(&self, version: u64) -> PublishedPolicy {
        self.publish(PolicyId::MAIN, PolicyVersion(version))
    }
}

impl ReferenceTrainer for Trainer {
    fn publish(&self, policy: PolicyId, version: PolicyVersion) -> PublishedPolicy {
        let published = publish(self.folder.path(), policy, version);
        match &published.weights {
            PublishedWeights::Folder(folder) if self.is_of_adapters => {
                PublishedPolicy { weights: PublishedWeights::Adapter(Arc::clone(folder)), ..published }
            }
            _ => published,
        }
    }

    fn logprobs(&self, version: PolicyVersion, request: &GenerateRequest, made: &Generation) -> Vec<f32> {
        let parts = [&request.prompt[..], &request.prefix, &made.tokens];
        let tokens = parts.concat();
        let temperature = f64::from(request.sampling.temperature);
        let all = Weights::of(version.0).score(&tokens, temperature);
        all[tokens.len() - made.tokens.len() - 1..].to_vec()
    }
}

/// A request of a group.
pub(crate) fn request(ticket: u64, sample: u32, max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey { sample, ..RandomKey::new(9, 0, Purpose::Rollout, ticket) };
    let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
    let prompt: Arc<[u32]> = Arc::from([1, ticket as u32 % 16, 9]);
    GenerateRequest { group: Some(ticket), ..GenerateRequest::new(key, prompt, sampling) }
}

/// Checks that each token's log-probability is that of the version named for it.
pub(crate) fn check(trainer: &Trainer, request: &GenerateRequest, made: &Generation) {
    let mut next = 0;
    for span in &made.versions {
        assert_eq!(span.range.start, next);
        next = span.range.end;
        let trained = trainer.logprobs(span.version, request, made);
        for at in span.range.clone() {
            assert!((made.logprobs[at] - trained[at]).abs() < 1e-5, "token {at} of {made:?}");
        }
    }
    assert_eq!((next, made.tokens.len()), (made.tokens.len(), made.logprobs.len()));
}
