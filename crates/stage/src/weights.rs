//! Publication of new weights to the rollout engine.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use rloom_core::{OnUpdate, PolicyId, PolicyVersion, Ticket};
use rloom_engine::{PublishedPolicy, RolloutEngine, RolloutError};
use rloom_sched::ScheduleSettings;
use tokio::task::{JoinError, JoinSet};

/// The weights of all trained policies at one version.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Those of the main policy.
    pub main: PublishedPolicy,
    /// Those of the further ones.
    pub further: Vec<PublishedPolicy>,
}

impl Publication {
    /// Version of the weights.
    pub fn version(&self) -> PolicyVersion {
        self.main.version
    }

    /// The weights of a trained policy.
    pub(crate) fn of(&self, policy: PolicyId) -> Option<&PublishedPolicy> {
        std::iter::once(&self.main).chain(&self.further).find(|own| own.policy == policy)
    }

    /// Digest of the weights of all policies; that of the main one if it is the only one.
    pub fn digest(&self) -> u64 {
        let rotated = |sum: u64, own: &PublishedPolicy| sum.rotate_left(17) ^ own.digest;
        self.further.iter().fold(self.main.digest, rotated)
    }
}

impl From<PublishedPolicy> for Publication {
    fn from(main: PublishedPolicy) -> Self {
        Self { main, further: Vec::new() }
    }
}

/// Result of loading weights.
#[derive(Debug)]
pub(crate) struct LoadResult {
    pub(crate) version: PolicyVersion,
    pub(crate) start: Instant,
    pub(crate) result: Result<(), RolloutError>,
}

/// Loads published weights into the rollout engine, at once or, with pinned versions, when no group of older weights is
/// left.
#[derive(Debug)]
pub struct WeightPublisher<R> {
    engine: Option<Arc<R>>,
    schedule: ScheduleSettings,
    groups_per_batch: u64,
    /// Version that the engine was last asked to load.
    requested: Option<PolicyVersion>,
    /// With pinned versions: the weights of every version that a group in flight is pinned to, oldest first, and the
    /// newest. The engine has the first of them, except while a journal is replayed.
    pinned: VecDeque<Publication>,
    /// Weights of frozen policies.
    frozen: Vec<PublishedPolicy>,
    /// Those among them that the engine has.
    loaded_frozen: BTreeSet<PolicyId>,
    /// Loads that wait for completions in flight.
    loading: JoinSet<LoadResult>,
}

impl<R: RolloutEngine + 'static> WeightPublisher<R> {
    /// Creates a publisher to `engine`. `pinned` are older weights that groups of a resumed stage are pinned to, `frozen`
    /// those of policies that are not trained.
    pub fn new(
        engine: Option<Arc<R>>,
        schedule: ScheduleSettings,
        groups_per_batch: u64,
        pinned: Vec<PublishedPolicy>,
        frozen: Vec<PublishedPolicy>,
    ) -> Self {
        let (pinned, loading) = (pinned.into_iter().map(Publication::from).collect(), JoinSet::new());
        let (requested, loaded_frozen) = (None, BTreeSet::new());
        Self { engine, schedule, groups_per_batch, requested, pinned, frozen, loaded_frozen, loading }
    }

    /// Weights of the frozen policies, which a checkpoint contains.
    pub(crate) fn frozen(&self) -> &[PublishedPolicy] {
        &self.frozen
    }

    /// Replaces the weights of a frozen policy from the next load on.
    pub(crate) fn set_frozen(&mut self, weights: PublishedPolicy) {
        self.loaded_frozen.remove(&weights.policy);
        match self.frozen.iter_mut().find(|own| own.policy == weights.policy) {
            Some(own) => *own = weights,
            None => self.frozen.push(weights),
        }
    }

    /// The rollout engine.
    pub(crate) fn engine(&self) -> Option<&Arc<R>> {
        self.engine.as_ref()
    }

    /// True if every group is sampled under the version that its ticket is pinned to.
    fn pins(&self) -> bool {
        self.schedule.pin_version && self.schedule.overlaps()
    }

    /// The version that a group is pinned to: that of its batch, `max_staleness` batches earlier.
    pub(crate) fn pinned_version(&self, ticket: Ticket) -> PolicyVersion {
        PolicyVersion((ticket.0 / self.groups_per_batch).saturating_sub(self.schedule.max_staleness))
    }

    /// True if the engine has the weights for a group and keeps them until it is complete.
    pub(crate) fn may_launch(&self, ticket: Ticket) -> bool {
        let version = self.pinned_version(ticket);
        // The engine may have newer weights for an evaluation while groups of older ones are still to run.
        let oldest = self.pinned.front().map(Publication::version);
        !self.pins() || (self.requested == Some(version) && oldest == Some(version))
    }

    /// True if the engine has this version or was asked to load it.
    pub(crate) fn has(&self, version: PolicyVersion) -> bool {
        self.requested == Some(version)
    }

    /// The first of these groups that is pinned to weights that are not available.
    pub(crate) fn first_without_weights(
        &self,
        mut in_flight: impl Iterator<Item = Ticket>,
    ) -> Option<Ticket> {
        let have = |version| self.pinned.iter().any(|weights| weights.version() == version);
        in_flight.find(|&ticket| self.pins() && !have(self.pinned_version(ticket)))
    }

    /// Weights older than `version` that groups in flight are pinned to: a checkpoint contains them.
    pub(crate) fn older_than(&self, version: PolicyVersion) -> Vec<PublishedPolicy> {
        let older = self.pinned.iter().filter(|weights| weights.version() < version);
        older.map(|weights| weights.main.clone()).collect()
    }

    /// Takes newly published weights. Returns those to load now, if any; `replaying` is true while a journal is replayed.
    pub(crate) fn take(&mut self, weights: Publication, replaying: bool) -> Option<Publication> {
        self.engine.as_ref()?;
        if !self.pins() {
            return Some(weights);
        }
        self.pinned.push_back(weights);
        // No group that is alive is older than `max_staleness` versions.
        while replaying && self.pinned.len() as u64 > self.schedule.max_staleness + 1 {
            self.pinned.pop_front();
        }
        None
    }

    /// With pinned versions: the oldest weights that a group in flight is pinned to, or else the newest, unless the engine
    /// has them. Older ones are dropped.
    pub(crate) fn next_pinned(&mut self, in_flight: impl Fn(PolicyVersion) -> bool) -> Option<Publication> {
        if !self.pins() {
            return None;
        }
        while let [oldest, _, ..] = self.pinned.make_contiguous() {
            if in_flight(oldest.version()) {
                break;
            }
            self.pinned.pop_front();
        }
        self.pinned.front().filter(|weights| self.requested != Some(weights.version())).cloned()
    }

    /// With pinned versions: the newest weights.
    pub(crate) fn newest_pinned(&self) -> Option<Publication> {
        self.pinned.back().cloned()
    }

    /// Asks the engine to load weights. `None` if that continues in the background, until completions in flight have
    /// finished.
    pub(crate) async fn load(&mut self, weights: Publication) -> Option<LoadResult> {
        let engine = self.engine.clone()?;
        let (start, version, on_update) = (Instant::now(), weights.version(), self.schedule.on_update);
        self.requested = Some(version);
        let mut all = vec![weights.main];
        all.extend(weights.further);
        let missing = self.frozen.iter().filter(|weights| self.loaded_frozen.insert(weights.policy));
        all.extend(missing.cloned());
        let mut load = Box::pin(async move {
            // Each call acts at once: no group starts between the updates of two policies.
            let loads: Vec<_> = all.iter().map(|weights| engine.load(weights, on_update)).collect();
            let mut result = Ok(());
            for load in loads {
                result = result.and(load.await);
            }
            LoadResult { version, start, result }
        });
        if self.schedule.overlaps() && on_update == OnUpdate::Finish && !self.pins() {
            // This may take as long as the longest completion. The engine acts on the request when it is first polled:
            // groups that start from now on get the new weights.
            return match std::future::poll_fn(|context| Poll::Ready(load.as_mut().poll(context))).await {
                Poll::Ready(loaded) => Some(loaded),
                Poll::Pending => {
                    self.loading.spawn(load);
                    None
                }
            };
        }
        Some(load.await)
    }

    /// Resolves to the next load that has finished in the background; pending without one. Cancel-safe.
    pub(crate) async fn next_loaded(&mut self) -> Result<LoadResult, JoinError> {
        match self.loading.join_next().await {
            Some(loaded) => loaded,
            None => std::future::pending().await,
        }
    }

    /// Releases the engine's weights, so that the optimiser updates them in place. If rollouts overlap with training they
    /// keep their weights, and the optimiser writes to a copy.
    pub(crate) async fn release(&mut self) -> Result<(), RolloutError> {
        match &self.engine {
            Some(engine) if !self.schedule.overlaps() => {
                self.loaded_frozen.clear();
                engine.release().await
            }
            _ => Ok(()),
        }
    }
}
