use std::future::Future;
use std::time::Duration;

use rloom_core::{OnUpdate, PolicyId};

use super::capabilities::{RolloutCapabilities, VersionGranularity};
use super::engine::{Abort, Health, RolloutEngine};
use super::status::{RequestTimes, RolloutStatistics, WorkerStatus};
use super::{GenerateRequest, Generation, InvalidReason, RequestName, RolloutError};
use crate::PublishedPolicy;

/// A rollout engine of several policies, each on an engine of its own.
///
/// With one engine it adds nothing: requests and weights of any policy go to that engine, which accepts or refuses them.
#[derive(Debug)]
pub struct PolicyRouter<E> {
    main: E,
    /// Engines of further policies.
    further: Vec<(PolicyId, E)>,
}

impl<E> PolicyRouter<E> {
    /// Sends all requests to `engine`, the one of [`PolicyId::MAIN`].
    pub fn new(engine: E) -> Self {
        Self { main: engine, further: Vec::new() }
    }

    /// Adds the engine of a further policy.
    #[must_use]
    pub fn with(mut self, policy: PolicyId, engine: E) -> Self {
        self.further.push((policy, engine));
        self
    }

    /// The engine of a policy; `None` for an unknown one.
    fn of(&self, policy: PolicyId) -> Option<&E> {
        if self.further.is_empty() || policy == PolicyId::MAIN {
            return Some(&self.main);
        }
        self.further.iter().find(|(id, _)| *id == policy).map(|(_, engine)| engine)
    }

    fn policies(&self) -> Vec<PolicyId> {
        std::iter::once(PolicyId::MAIN).chain(self.further.iter().map(|(id, _)| *id)).collect()
    }

    fn all(&self) -> impl Iterator<Item = &E> {
        std::iter::once(&self.main).chain(self.further.iter().map(|(_, engine)| engine))
    }
}

/// Awaits calls that have been made already. All have ended when it returns; the first error is its result.
async fn joined<F: Future<Output = Result<(), RolloutError>>>(calls: Vec<F>) -> Result<(), RolloutError> {
    let mut result = Ok(());
    for call in calls {
        result = result.and(call.await);
    }
    result
}

impl<E: RolloutEngine> RolloutEngine for PolicyRouter<E> {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let called = match self.of(request.policy) {
            Some(engine) => Ok(engine.generate(request)),
            None => Err(RolloutError::InvalidRequest {
                request: RequestName(request.key),
                reason: InvalidReason::UnknownPolicy { policy: request.policy, loaded: self.policies() },
            }),
        };
        async move { called?.await }
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let called = self.of(policy.policy).map(|engine| engine.load(policy, on_update)).ok_or_else(|| {
            let loaded = self.policies();
            RolloutError::TooManyPolicies { label: policy.label(), limit: loaded.len(), loaded }
        });
        async move { called?.await }
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        joined(self.all().map(RolloutEngine::release).collect())
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        joined(self.all().map(|engine| engine.abort(which)).collect())
    }

    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        let called: Vec<_> = self.all().map(|engine| engine.health(timeout)).collect();
        async move {
            let mut sum = Health::default();
            for health in called {
                let Health { loaded, running, waiting, used_blocks, blocks } = health.await?;
                sum.loaded.extend(loaded);
                sum.running += running;
                sum.waiting += waiting;
                sum.used_blocks += used_blocks;
                sum.blocks += blocks;
            }
            Ok(sum)
        }
    }

    fn capabilities(&self) -> RolloutCapabilities {
        let mut all = self.main.capabilities();
        for (_, engine) in &self.further {
            all = common(all, &engine.capabilities());
        }
        all
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        let mut workers = self.main.workers();
        for (policy, engine) in &self.further {
            let named = |status: WorkerStatus| WorkerStatus {
                worker: format!("policy {policy} {}", status.worker),
                ..status
            };
            workers.extend(engine.workers().into_iter().map(named));
        }
        workers
    }

    fn take_failures(&self) -> Vec<String> {
        self.all().flat_map(RolloutEngine::take_failures).collect()
    }

    fn take_request_times(&self) -> Option<RequestTimes> {
        self.main.take_request_times()
    }

    fn statistics(&self) -> RolloutStatistics {
        self.all().map(RolloutEngine::statistics).fold(RolloutStatistics::default(), |sum, own| sum + own)
    }
}

/// Properties of two engines together.
fn common(one: RolloutCapabilities, other: &RolloutCapabilities) -> RolloutCapabilities {
    let mixes = |kind: &OnUpdate| one.mixes_versions.contains(kind) || other.mixes_versions.contains(kind);
    let on_update: Vec<OnUpdate> =
        one.on_update.iter().filter(|kind| other.on_update.contains(kind)).copied().collect();
    RolloutCapabilities {
        mixes_versions: on_update.iter().filter(|kind| mixes(kind)).copied().collect(),
        on_update,
        numeric_path: one.numeric_path.filter(|path| other.numeric_path.as_ref() == Some(path)),
        batch_invariant: one.batch_invariant && other.batch_invariant,
        versions: match (one.versions, other.versions) {
            (VersionGranularity::PerToken, VersionGranularity::PerToken) => VersionGranularity::PerToken,
            _ => VersionGranularity::PerReply,
        },
        forms: one.forms.into_iter().filter(|form| other.forms.contains(form)).collect(),
        stop_strings: one.stop_strings && other.stop_strings,
        context: one.context.min(other.context),
        max_running: one.max_running.saturating_add(other.max_running),
        policies: one.policies + other.policies,
        attachments: one.attachments && other.attachments,
        parks: one.parks && other.parks,
        speculates: one.speculates || other.speculates,
        quantizes: one.quantizes || other.quantizes,
    }
}
