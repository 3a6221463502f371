//! New weights, from the trainer to the rollout engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use rloom_core::{PolicyVersion, Ticket};
use rloom_model::Weights;
use rloom_rollout::{InFlight, RolloutEngine, RolloutError};
use tokio::task::JoinSet;

use super::Stage;
use super::evaluating::Evaluation;
use crate::RunError;
use crate::events::{Activity, Lane};
use crate::trainer::Work;

/// The weights that the rollout engine has, and those that it will have.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    /// The version that the engine was last told to take.
    told: Option<PolicyVersion>,
    /// With pinned versions: the weights of every version that a group under way is pinned to, oldest first, and the
    /// newest. The engine has the first ones, except while a history is replayed.
    pub(crate) pinned: VecDeque<Weights>,
    /// Changes of weights that wait for completions to end.
    pub(super) changing: JoinSet<Change>,
}

/// A change of weights: to which, since when, and what came of it.
pub(super) type Change = (PolicyVersion, Instant, Result<(), RolloutError>);

impl Stage<'_, '_> {
    fn pins(&self) -> bool {
        self.parts.schedule.pin_version && self.parts.schedule.overlaps()
    }

    /// The version that a group is pinned to: that of `B` groups, `η` batches before its own.
    fn pinned_to(&self, ticket: Ticket) -> PolicyVersion {
        PolicyVersion(
            (ticket.0 / self.parts.groups_per_batch).saturating_sub(self.parts.schedule.max_staleness),
        )
    }

    /// Whether the engine has the weights for a group, and keeps them until it is done.
    pub(super) fn may_run(&self, ticket: Ticket) -> bool {
        let version = self.pinned_to(ticket);
        // Newer weights may be there for an evaluation, while groups of older ones are still to run.
        let oldest = self.publisher.pinned.front().map(|weights| weights.version);
        !self.pins() || (self.publisher.told == Some(version) && oldest == Some(version))
    }

    /// Hands the weights with which the stage begins or goes on to the engine.
    pub(super) async fn publish_first(&mut self) -> Result<(), RunError> {
        let version = self.scheduler.version();
        let Some(trainer) = &mut self.trainer else { return Ok(()) };
        trainer.publish(version);
        let Ok(done) = tokio::time::timeout(self.parts.stall, trainer.done()).await else {
            return Err(self.stalled("the driver waits for the trainer to hand over its weights"));
        };
        match done.map(|done| done.what) {
            Some(Work::Published(weights)) => {
                let weights = weights.map_err(|e| self.ended_badly(&e.to_string()))?;
                self.hand_over(weights).await
            }
            _ => Err(self.trainer_died()),
        }
    }

    /// Hands weights to the engine, at once or, with pinned versions, when no group of older ones is left.
    pub(super) async fn hand_over(&mut self, weights: Weights) -> Result<(), RunError> {
        if self.parts.engine.is_none() {
            return Ok(());
        }
        if !self.pins() {
            return self.load(weights).await;
        }
        self.publisher.pinned.push_back(weights);
        if self.replay.is_over() {
            return self.load_pinned().await;
        }
        // No group that is alive is older than η versions.
        while self.publisher.pinned.len() as u64 > self.parts.schedule.max_staleness + 1 {
            self.publisher.pinned.pop_front();
        }
        Ok(())
    }

    /// With pinned versions: whether the weights are there of every group that a resumed run has under way.
    pub(super) fn check_pinned(&self) -> Result<(), RunError> {
        let have = |version| self.publisher.pinned.iter().any(|weights| weights.version == version);
        let lost = self.groups.under_way.keys().find(|&&ticket| self.pins() && !have(self.pinned_to(ticket)));
        match lost {
            None => Ok(()),
            Some(&ticket) => Err(RunError::PinnedWeightsMissing {
                stage: self.parts.outline.name.clone(),
                ticket: ticket.0,
                version: self.pinned_to(ticket).0,
                checkpoint: self.last_good(),
            }),
        }
    }

    /// With pinned versions: gives the engine the oldest weights that a group is left for, or else the newest. An
    /// evaluation under way keeps the ones that it began with.
    pub(super) async fn load_pinned(&mut self) -> Result<(), RunError> {
        if !self.pins() {
            return Ok(());
        }
        while let [oldest, _, ..] = self.publisher.pinned.make_contiguous() {
            let version = oldest.version;
            if self.groups.under_way.keys().any(|&ticket| self.pinned_to(ticket) == version) {
                break;
            }
            self.publisher.pinned.pop_front();
        }
        let evaluates = self.evaluation.as_ref().is_some_and(Evaluation::has_begun);
        if let Some(weights) = self.publisher.pinned.front().filter(|_| !evaluates).cloned()
            && self.publisher.told != Some(weights.version)
        {
            self.load(weights).await?;
            self.launch_waiting()?;
        }
        Ok(())
    }

    /// With pinned versions, while a history is replayed: gives the engine the newest weights, for an evaluation.
    pub(super) async fn load_newest(&mut self) -> Result<(), RunError> {
        match self.publisher.pinned.back().cloned() {
            Some(newest) => self.load(newest).await,
            None => Ok(()),
        }
    }

    /// Whether the engine has this version, or was told to take it.
    pub(super) fn has(&self, version: PolicyVersion) -> bool {
        self.publisher.told == Some(version)
    }

    /// Older weights that groups under way are pinned to: a checkpoint holds them, too.
    pub(super) fn older_weights(&self) -> Vec<Weights> {
        let version = self.scheduler.version();
        self.publisher.pinned.iter().filter(|weights| weights.version < version).cloned().collect()
    }

    async fn load(&mut self, weights: Weights) -> Result<(), RunError> {
        let Some(engine) = self.parts.engine.clone() else { return Ok(()) };
        let (start, version) = (Instant::now(), weights.version);
        let in_flight = self.parts.schedule.on_update;
        self.publisher.told = Some(version);
        if self.parts.schedule.overlaps() && in_flight == InFlight::Finish && !self.pins() {
            // It may take as long as the longest completion: meanwhile everything else goes on.
            let mut change = Box::pin(async move {
                let changed = engine.load(&weights, in_flight).await;
                (version, start, changed)
            });
            // An engine is told when it is first polled; groups that start from now on are the new weights'.
            let told = std::future::poll_fn(|context| std::task::Poll::Ready(change.as_mut().poll(context)));
            match told.await {
                std::task::Poll::Ready((version, start, changed)) => self.loaded(version, start, changed)?,
                std::task::Poll::Pending => drop(self.publisher.changing.spawn(change)),
            }
            return Ok(());
        }
        let changed = engine.load(&weights, in_flight).await;
        drop(weights);
        self.loaded(version, start, changed)
    }

    pub(super) fn loaded(
        &mut self,
        version: PolicyVersion,
        start: Instant,
        changed: Result<(), RolloutError>,
    ) -> Result<(), RunError> {
        changed.map_err(|e| self.ended_badly(&e.to_string()))?;
        self.watch.heard();
        self.activity(Lane::Rollout, Activity::LoadWeights, start, Instant::now(), version.0, None);
        Ok(())
    }

    /// Takes the weights away from the engine, so that the optimiser writes in place. Where rollouts go on meanwhile
    /// they keep theirs, and it writes to a second buffer.
    pub(super) async fn release_weights(&self) -> Result<(), RunError> {
        match &self.parts.engine {
            Some(engine) if !self.parts.schedule.overlaps() => {
                Arc::clone(engine).release().await.map_err(|e| self.ended_badly(&e.to_string()))
            }
            _ => Ok(()),
        }
    }
}
