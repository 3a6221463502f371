//! Batches: cut, trained on, published, saved.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Instant;

use rloom_core::{Group, PolicyVersion, Ticket};
use rloom_engine::{RolloutEngine, TrainEngine, TrainError};
use rloom_learn::{GivenAdvantages, MethodError};
use rloom_sched::{InFlightWork, ReusedGroup, SchedulerEvent};
use rloom_store::checkpoint::{CheckpointName, CheckpointState};
use rloom_store::journal::Record;
use rloom_telemetry::{Activity, Event, Lane};

use crate::recovery::RecordedCut;
use crate::reporter::Reporter;
use crate::trainer::{BatchResult, SaveJob, TrainJob, TrainedBatch, TrainerEvent, TrainerResult};
use crate::{JournaledEvent, Publication, Stage, TICK};
use crate::{StageError, WorkerError};

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Publishes the weights that the stage starts or resumes with.
    pub(crate) async fn publish_initial(&mut self) -> Result<(), StageError> {
        let version = self.scheduler.version();
        if let Some(trainer) = &self.trainer {
            trainer.publish(version);
        }
        self.stall.alive();
        let done = loop {
            let Some(trainer) = &mut self.trainer else { return Ok(()) };
            match tokio::time::timeout(TICK, trainer.next()).await {
                Ok(done) => break done,
                Err(_) => self.check_stall(Self::describe_publishing)?,
            }
        };
        match done.map(|done| done.result) {
            Some(TrainerResult::Published(weights)) => {
                let weights = weights.map_err(|error| self.worker_failed(error))?;
                self.keep_opponents(&weights);
                self.publish(weights).await
            }
            _ => Err(self.trainer_died()),
        }
    }

    /// Keeps published weights in the leagues whose turn it is.
    fn keep_opponents(&mut self, weights: &Publication) {
        for league in &mut self.leagues {
            if let Some(kept) = league.keep(weights) {
                self.weights.set_frozen(kept);
            }
            league.offer();
        }
    }

    /// Hands weights to the rollout engine, at once or, with pinned versions, when no group of older ones is left.
    async fn publish(&mut self, weights: Publication) -> Result<(), StageError> {
        let replaying = !self.journal.is_live();
        if let Some(weights) = self.weights.take(weights, replaying) {
            return self.load(weights).await;
        }
        if replaying { Ok(()) } else { self.load_pinned().await }
    }

    /// With pinned versions: loads the oldest weights that a group in flight is pinned to, or else the newest. A running
    /// evaluation keeps its weights.
    pub(crate) async fn load_pinned(&mut self) -> Result<(), StageError> {
        let in_flight = self.groups.in_flight().keys();
        let needed: BTreeSet<PolicyVersion> =
            in_flight.map(|&ticket| self.weights.pinned_version(ticket)).collect();
        let next = self.weights.next_pinned(|version| needed.contains(&version));
        if let Some(weights) = next.filter(|_| !self.evaluation.is_running()) {
            self.load(weights).await?;
            self.launch_waiting()?;
        }
        Ok(())
    }

    /// Loads weights into the rollout engine.
    pub(crate) async fn load(&mut self, weights: Publication) -> Result<(), StageError> {
        let engine = self.weights.engine().cloned();
        let loaded = {
            let mut loading = pin!(self.weights.load(weights));
            loop {
                tokio::select! {
                    biased;
                    loaded = &mut loading => break loaded,
                    // The first load waits for workers that start, which may fail again and again.
                    () = tokio::time::sleep(TICK) => warn_of_failures(engine.as_deref(), &mut self.reporter),
                }
            }
        };
        self.warn_of_workers();
        match loaded {
            Some(loaded) => self.on_loaded(loaded),
            None => Ok(()),
        }
    }

    /// Warns of workers of the rollout engine that have failed.
    pub(crate) fn warn_of_workers(&mut self) {
        warn_of_failures(self.weights.engine().map(|engine| &**engine), &mut self.reporter);
    }

    /// Cuts a batch and gives it to the trainer.
    pub(crate) async fn train_batch(
        &mut self,
        batch: u64,
        tickets: &[Ticket],
        reused: Vec<ReusedGroup>,
    ) -> Result<(), StageError> {
        let recorded = self.compared_cut(batch, tickets, &reused)?;
        let mut groups: Vec<Group> =
            tickets.iter().filter_map(|&ticket| self.groups.take_ready(ticket)).collect();
        groups.extend(self.groups.reusable().of_batch(&reused));
        if groups.len() != tickets.len() + reused.len() {
            let missing = tickets.len() + reused.len() - groups.len();
            return Err(StageError::IncompleteBatch { stage: self.stage_name(), batch, missing });
        }
        let is_recorded = recorded.is_some();
        let (groups, advantages) = match recorded.and_then(|recorded| recorded.advantages) {
            Some(advantages) => (groups, Some(advantages)),
            None => self.call_advantages(batch, groups).await?,
        };
        if !is_recorded && self.groups.source().samples() {
            self.journal.append_cut(batch, tickets, reused, advantages.clone())?;
        }
        self.clock.cut(self.scheduler.counts());
        self.note_trainer_busy();
        self.weights.release().await.map_err(|error| self.worker_failed(error))?;
        let learner = self.learner.clone();
        let held_out = self.rows_to_validate(PolicyVersion(batch + 1));
        let job = TrainJob { version: PolicyVersion(batch), groups, advantages, learner, held_out };
        if let Some(trainer) = &self.trainer {
            trainer.train(job);
        }
        Ok(())
    }

    /// Compares the cut with the recorded one, and returns that; `None` if there is none.
    fn compared_cut(
        &mut self,
        batch: u64,
        tickets: &[Ticket],
        reused: &[ReusedGroup],
    ) -> Result<Option<RecordedCut>, StageError> {
        if !self.groups.source().samples() {
            return Ok(None);
        }
        match self.recorded_cut() {
            Some(recorded) if recorded.tickets != tickets || recorded.reused != reused => {
                let all = |new: &[Ticket], reused: &[ReusedGroup]| {
                    let reused = reused.iter().map(|group| group.ticket);
                    new.iter().copied().chain(reused).map(|ticket| ticket.0).collect()
                };
                Err(StageError::CutMismatch {
                    stage: self.stage_name(),
                    batch,
                    recorded: all(&recorded.tickets, &recorded.reused),
                    now: all(tickets, reused),
                })
            }
            recorded => Ok(recorded),
        }
    }

    /// Has the Python function compute the advantages of a batch, if there is one. The driver waits: nothing can be
    /// trained before, and the call has a timeout.
    async fn call_advantages(
        &mut self,
        batch: u64,
        groups: Vec<Group>,
    ) -> Result<(Vec<Group>, Option<GivenAdvantages>), StageError> {
        let functions = self.context.training.functions.clone();
        if !functions.computes_advantages() {
            return Ok((groups, None));
        }
        let call = tokio::task::spawn_blocking(move || {
            let advantages = functions.advantages(PolicyVersion(batch), &groups);
            (groups, advantages)
        });
        let (groups, advantages) =
            call.await.map_err(|error| self.worker_failed(WorkerError::function_task(&error)))?;
        let advantages = advantages.map_err(|error| self.worker_failed(MethodError::from(error)))?;
        Ok((groups, advantages))
    }

    /// Handles a finished job of the training thread.
    pub(crate) async fn on_trainer(
        &mut self,
        done: Option<TrainerEvent>,
    ) -> Result<Option<JournaledEvent>, StageError> {
        let Some(TrainerEvent { result, start, end }) = done else { return Err(self.trainer_died()) };
        self.stall.alive();
        match result {
            TrainerResult::Trained(trained) => self.on_trained(*trained, (start, end)).await.map(Some),
            TrainerResult::Saved { version, result } => {
                self.on_saved(version, result, (start, end)).map(|()| None)
            }
            TrainerResult::Published(_) | TrainerResult::Validated(_) => Ok(None),
        }
    }

    /// Publishes and reports a trained batch.
    async fn on_trained(
        &mut self,
        trained: TrainedBatch,
        (start, _): (Instant, Instant),
    ) -> Result<JournaledEvent, StageError> {
        let TrainedBatch { batch, mut groups, result } = trained;
        let BatchResult { report, trained: end, validated, weights } =
            result.map_err(|error| self.training_failed(batch, error))?;
        let digest = weights.digest();
        self.check_replayed(batch, digest)?;
        self.learner.optimizer_steps += report.optimizer_steps;
        self.learner.skipped_steps += report.steps_skipped();
        self.learner.algorithm = report.state.clone();
        self.set_step(PolicyVersion(batch + 1));
        self.reporter.activity(Lane::Train, Activity::Train, (start, end), batch, None);
        // Results count once, in the batch that a group is new in.
        let new = groups.len().min(self.context.groups_per_batch as usize);
        for league in &mut self.leagues {
            league.count(&groups[..new]);
        }
        self.keep_opponents(&weights);
        let publishing = Instant::now();
        self.publish(weights).await?;
        let published = Instant::now();
        self.clock.published(published - publishing);
        self.reporter.activity(Lane::Train, Activity::Publish, (publishing, published), batch + 1, None);
        self.end_measured_batch(&groups[..new]);
        self.report_step(&groups, new, &report, end - start);
        self.report_skipped(&report);
        if let Some(validated) = validated {
            self.report_validation(PolicyVersion(batch + 1), validated);
        }
        groups.truncate(new);
        self.keep_trained(groups, batch);
        self.clock.trainer_idle();
        let record = Record::Trained { policy: self.context.policy, batch, weights: digest };
        Ok(JournaledEvent::recorded(SchedulerEvent::BatchTrained, record))
    }

    fn training_failed(&self, batch: u64, error: TrainError) -> StageError {
        if error.is_not_finite() {
            StageError::NotFinite {
                stage: self.stage_name(),
                step: batch + 1,
                cause: error,
                skipped: self.learner.skipped_steps,
                checkpoint: self.last_checkpoint(),
            }
        } else {
            self.worker_failed(error)
        }
    }

    /// The error for a training thread that is gone.
    pub(crate) fn trainer_died(&mut self) -> StageError {
        match self.trainer.take().map(crate::trainer::TrainerHandle::end) {
            Some(Err(failure)) => self.worker_failed(failure),
            _ => self.worker_failed(WorkerError::TrainerEnded),
        }
    }

    /// Saves the current version as the best one, unless it is saved: the journal then follows the saved state, not a
    /// later one of the same version.
    pub(crate) fn save_best(&mut self) -> Result<(), StageError> {
        match self.checkpoints.of_version(self.scheduler.version()) {
            Some(path) => Ok(self.checkpoints.point_best(path)?),
            None => self.save(),
        }
    }

    /// Has the trainer write a checkpoint of the current version, and starts the journal segment that follows it.
    pub(crate) fn save(&mut self) -> Result<(), StageError> {
        self.note_trainer_busy();
        let version = self.scheduler.version();
        let context = &self.context;
        let state = CheckpointState {
            policy: context.policy,
            stage: context.index,
            stage_name: context.outline.name.clone(),
            stage_base: context.base,
            scheduler: self.scheduler.state(),
            optimizer_steps: self.learner.optimizer_steps,
            skipped_steps: self.learner.skipped_steps,
            algorithm: self.learner.algorithm.clone(),
            counters: self.counters.clone(),
            best: self.evaluation.best().cloned(),
            numeric_path: context.numeric_path.clone(),
            seed: context.seed,
            leagues: self.leagues.iter().map(|league| (league.name.clone(), league.saved())).collect(),
            pinned_versions: Vec::new(),
        };
        let frozen = self.context.policies.named(self.weights.frozen());
        let name = CheckpointName {
            policy: context.policy,
            stage: context.index,
            step: version.0,
            stage_name: context.outline.name.clone(),
        };
        // Without the groups that the state has ended.
        let mut alive: BTreeSet<Ticket> =
            state.scheduler.open_groups.iter().map(|group| group.ticket).collect();
        if let InFlightWork::Training(tickets) = &state.scheduler.in_flight {
            alive.extend(tickets);
        }
        self.journal
            .roll(version.0, &self.groups.records(&alive, context.policy, &context.policies, version))?;
        self.checkpoints.start_saving(name.clone());
        let older = self.weights.older_than(version);
        if let Some(trainer) = &self.trainer {
            trainer.save(SaveJob { name, state, older, frozen });
        }
        Ok(())
    }

    /// Handles a written checkpoint: removes older checkpoints and journal segments that are not needed any more.
    fn on_saved(
        &mut self,
        version: u64,
        result: Result<(PathBuf, u64), StageError>,
        (start, end): (Instant, Instant),
    ) -> Result<(), StageError> {
        let (path, bytes) = result.map_err(|error| match error {
            StageError::Train(error) => self.worker_failed(error),
            error => error,
        })?;
        let is_best = self.evaluation.is_best(PolicyVersion(version));
        let oldest = self.checkpoints.finish_saving(version, &path, is_best, self.evaluation.best())?;
        self.journal.prune(oldest)?;
        self.clock.saved(end - start);
        let relative = path.strip_prefix(self.directory.path()).unwrap_or(&path).display().to_string();
        self.set_step(PolicyVersion(version));
        self.reporter.activity(Lane::Train, Activity::Checkpoint, (start, end), version, None);
        self.reporter.emit(Event::Checkpoint { path: relative, bytes });
        if self.scheduler.counts().in_batch == 0 {
            self.clock.trainer_idle();
        }
        self.checkpointed(PolicyVersion(version));
        Ok(())
    }
}

fn warn_of_failures<R: RolloutEngine>(engine: Option<&R>, reporter: &mut Reporter<'_, '_>) {
    for failure in engine.map(RolloutEngine::take_failures).unwrap_or_default() {
        reporter.warn(failure);
    }
}
