//! Events of the workers.

use std::time::Instant;

use rloom_algo::FilterReason;
use rloom_collect::{GroupFailure, GroupUpdate};
use rloom_core::{Episode, Group, PolicyVersion, Role, Task, Ticket};
use rloom_engine::{RolloutEngine, TrainEngine};
use rloom_learn::MethodError;
use rloom_sched::SchedulerEvent;
use rloom_store::journal::Record;
use rloom_telemetry::{Activity, Event, GroupEnd, Lane, Phase};
use tokio::task::JoinError;

use crate::evaluation::EvaluationResult;
use crate::groups::{GroupChange, GroupEvent, GroupPart, ready_record};
use crate::trainer::TrainerEvent;
use crate::weights::LoadResult;
use crate::{JournaledEvent, Stage, TICK};
use crate::{StageError, WorkerError};

/// An event that wakes the driver.
enum StageEvent {
    /// A group made progress or ended.
    Group(GroupEvent),
    /// The training thread finished a job; `None` if it has died.
    Trainer(Option<TrainerEvent>),
    /// The evaluation ended.
    Evaluated(EvaluationResult),
    /// The engine has loaded weights in the background.
    Loaded(Result<LoadResult, JoinError>),
    /// Time for progress reports.
    Tick,
}

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Waits for the next event of a worker and handles it. Returns the event for the scheduler, if any.
    pub(crate) async fn wait(&mut self) -> Result<Option<JournaledEvent>, StageError> {
        let trainer = async {
            match &mut self.trainer {
                Some(trainer) => trainer.next().await,
                None => None,
            }
        };
        let event = tokio::select! {
            biased;
            // First, so that a stream of small events does not starve it.
            () = tokio::time::sleep_until(self.next_tick) => StageEvent::Tick,
            done = trainer => StageEvent::Trainer(done),
            result = self.evaluation.done() => StageEvent::Evaluated(result),
            loaded = self.weights.next_loaded() => StageEvent::Loaded(loaded),
            event = self.groups.next() => StageEvent::Group(event),
        };
        match event {
            StageEvent::Group(event) => {
                let event = self.on_group(event).await?;
                if event.is_some() {
                    self.note_rollouts();
                    self.load_pinned().await?;
                    self.start_evaluation();
                }
                Ok(event)
            }
            StageEvent::Trainer(done) => {
                let event = self.on_trainer(done).await?;
                self.start_evaluation();
                Ok(event)
            }
            StageEvent::Evaluated(result) => {
                let event = self.on_evaluated(result)?;
                if self.journal.is_live() {
                    self.load_pinned().await?;
                }
                Ok(event)
            }
            StageEvent::Loaded(loaded) => {
                let loaded = loaded.map_err(|error| self.worker_failed(WorkerError::load_task(&error)))?;
                self.on_loaded(loaded)?;
                Ok(None)
            }
            StageEvent::Tick => {
                self.next_tick = tokio::time::Instant::now() + TICK;
                self.on_tick()?;
                Ok(None)
            }
        }
    }

    fn on_tick(&mut self) -> Result<(), StageError> {
        self.report_rollout_progress();
        self.report_training_progress();
        self.warn_of_workers();
        if let Some(event) = self.evaluation.progress_event() {
            self.reporter.emit(event);
        }
        self.check_stall(Self::describe_wait)
    }

    async fn on_group(&mut self, event: GroupEvent) -> Result<Option<JournaledEvent>, StageError> {
        let Some(change) = self.groups.interpret(event) else { return Ok(None) };
        self.stall.alive();
        match change {
            GroupChange::Update(ticket, update) => self.on_group_update(ticket, update).map(|()| None),
            GroupChange::Complete(ticket, task) => self.on_group_complete(ticket, task).await.map(Some),
            GroupChange::Failed(ticket, failure) => self.on_group_failed(ticket, failure).map(Some),
            GroupChange::Stopped(_) => Ok(None),
        }
    }

    /// Journals a scored or interrupted episode.
    pub(crate) fn on_group_update(&mut self, ticket: Ticket, update: GroupUpdate) -> Result<(), StageError> {
        let (record, part, sample) = match update {
            GroupUpdate::Episode { sample, episode, reward_time } => {
                self.clock.scored(episode.policy_tokens(), reward_time);
                let record = Record::Episode { ticket, sample, episode: episode.clone() };
                (record, GroupPart::Episode(episode), sample)
            }
            GroupUpdate::Judged { sample, episode, reward_time } => {
                self.clock.scored(0, reward_time);
                let record = Record::Episode { ticket, sample, episode: episode.clone() };
                (record, GroupPart::Episode(episode), sample)
            }
            GroupUpdate::Partial { sample, partial } => {
                let record = Record::PartialEpisode { ticket, sample, episode: partial.clone() };
                (record, GroupPart::Partial(partial), sample)
            }
        };
        self.record(&record)?;
        self.groups.add(ticket, sample, part);
        Ok(())
    }

    async fn on_group_complete(&mut self, ticket: Ticket, task: Task) -> Result<JournaledEvent, StageError> {
        let Some((group, started)) = self.groups.assemble(ticket, task) else {
            return Err(StageError::UnknownGroup { stage: self.stage_name(), ticket: ticket.0 });
        };
        let version = self.scheduler.version();
        let oldest = self.context.policies.oldest_version(&group).unwrap_or(version);
        if let Some(started) = started {
            let interval = (started, Instant::now());
            self.reporter.activity(Lane::Rollout, Activity::Group, interval, oldest.0, Some(ticket.0));
        }
        let record = ready_record(&group, self.context.policy, oldest);
        let (group, reason) = match self.verdict(&group) {
            None => self.call_filter(oldest, group).await?,
            reason => (group, reason),
        };
        let event = self.admit_complete(group, reason)?;
        Ok(match event {
            SchedulerEvent::GroupFiltered(_) => JournaledEvent::recorded(event, Record::Filtered { ticket }),
            _ => JournaledEvent::recorded(event, record),
        })
    }

    /// The reason to replace a complete group, as far as no Python function decides. Deterministic.
    pub(crate) fn verdict(&self, group: &Group) -> Option<FilterReason> {
        let filters = self.context.training.algorithm.filters;
        let trained = group.episodes.iter().filter(|e| e.role == Role::Train);
        let rewards: Vec<Option<f64>> = trained.clone().map(|e| filters.compared_reward(e)).collect();
        let (rule, domain) = (&self.context.training.outcome, &group.task.domain);
        let raw: Vec<Option<f64>> = trained.clone().map(|e| rule.unshaped(&e.rewards)).collect();
        let outcomes: Vec<Option<f64>> = trained.map(|e| rule.outcome(domain, &e.rewards)).collect();
        let by_method = filters.verdict(&outcomes, &rewards);
        by_method.or_else(|| self.context.domains.verdict(domain, &raw))
    }

    /// Has the Python function decide about a complete group, if there is one. The decision is recorded.
    async fn call_filter(
        &mut self,
        version: PolicyVersion,
        group: Group,
    ) -> Result<(Group, Option<FilterReason>), StageError> {
        let functions = self.context.training.functions.clone();
        if !functions.filters_groups() {
            return Ok((group, None));
        }
        let call = tokio::task::spawn_blocking(move || {
            let keeps = functions.keeps(version, &group);
            (group, keeps)
        });
        let (group, keeps) =
            call.await.map_err(|error| self.worker_failed(WorkerError::function_task(&error)))?;
        let keeps = keeps.map_err(|error| self.worker_failed(MethodError::from(error)))?;
        Ok((group, (!keeps).then_some(FilterReason::Function)))
    }

    /// Keeps a complete group, or replaces it for `reason`.
    pub(crate) fn admit_complete(
        &mut self,
        group: Group,
        reason: Option<FilterReason>,
    ) -> Result<SchedulerEvent, StageError> {
        let ticket = group.ticket;
        self.counters.tokens += group.episodes.iter().map(Episode::policy_tokens).sum::<usize>() as u64;
        let Some(reason) = reason else {
            let oldest = self.context.policies.oldest_version(&group).unwrap_or(self.scheduler.version());
            self.groups.add_ready(group);
            return Ok(SchedulerEvent::GroupReady { ticket, oldest });
        };
        self.reporter.group_ended(ticket.0, GroupEnd::Filtered, Some(reason.name().to_owned()));
        *self.counters.filtered.entry(reason.name().to_owned()).or_default() += 1;
        if self.context.domains.are_reported {
            *self.counters.filtered_domains.entry(group.task.domain.clone()).or_default() += 1;
        }
        self.count_attempts(&group);
        let filtered: u64 = self.counters.filtered.values().sum();
        let batch = self.context.groups_per_batch;
        let of_method = self.context.training.algorithm.filters.max_draws;
        let max_draws = of_method.max(self.context.domains.max_draws);
        let setting = if max_draws > of_method { "domains.max_draws" } else { "algorithm.filter.max_draws" };
        if filtered + batch > u64::from(max_draws) * batch * self.batches_in_progress() {
            return Err(StageError::NothingLeft {
                stage: self.stage_name(),
                step: self.step(),
                filtered: self.counters.filtered.iter().map(|(name, n)| format!("{n} {name}")).collect(),
                draws: max_draws,
                setting,
                checkpoint: self.last_checkpoint(),
            });
        }
        Ok(SchedulerEvent::GroupFiltered(ticket))
    }

    /// Number of batches for which groups may be generated at once; limits per batch are multiplied by it.
    fn batches_in_progress(&self) -> u64 {
        1 + self.context.schedule.max_staleness
    }

    /// Replaces the group, or ends the run at one failure too many.
    fn on_group_failed(
        &mut self,
        ticket: Ticket,
        failure: GroupFailure,
    ) -> Result<JournaledEvent, StageError> {
        if self.context.schedule.max_failures == 0 {
            return Err(self.group_error(ticket, failure));
        }
        if self.counters.failed >= self.context.schedule.max_failures * self.batches_in_progress() {
            // Not recorded: a resumed run tries this group again.
            return Err(StageError::TooManyFailures {
                stage: self.stage_name(),
                step: self.step(),
                failures: self.counters.failed + 1,
                last: format!("group {} (task {}): {}", ticket.0, failure.task, failure.cause),
                cause: failure.cause,
                checkpoint: self.last_checkpoint(),
            });
        }
        let record = Record::Failed { ticket, reason: failure.cause.message.clone() };
        Ok(JournaledEvent::recorded(self.replace_failed(ticket, failure), record))
    }

    /// Counts a failed group that the scheduler replaces.
    pub(crate) fn replace_failed(&mut self, ticket: Ticket, failure: GroupFailure) -> SchedulerEvent {
        self.groups.remove_failed(ticket);
        self.reporter.warn(format!(
            "group {} (task {}) failed and is replaced: {}",
            ticket.0, failure.task, failure.cause
        ));
        self.reporter.group_ended(ticket.0, GroupEnd::Failed, Some(failure.cause.message));
        self.counters.failed += 1;
        SchedulerEvent::GroupFailed(ticket)
    }

    pub(crate) fn group_error(&self, ticket: Ticket, failure: GroupFailure) -> StageError {
        StageError::Group {
            stage: self.stage_name(),
            step: self.step(),
            ticket: ticket.0,
            task: failure.task,
            cause: failure.cause,
            checkpoint: self.last_checkpoint(),
        }
    }

    /// Reports an evaluation.
    fn on_evaluated(&mut self, result: EvaluationResult) -> Result<Option<JournaledEvent>, StageError> {
        let Some((version, started)) = self.evaluation.finish() else { return Ok(None) };
        self.stall.alive();
        let report = result
            .map_err(|error| self.worker_failed(WorkerError::evaluation_task(&error)))?
            .map_err(|error| self.worker_failed(WorkerError::Evaluation(Box::new(error))))?;
        self.set_step(version);
        let interval = (started, Instant::now());
        self.reporter.activity(Lane::Train, Activity::Evaluate, interval, version.0, None);
        let best = self.evaluation.record(version, report.accuracy);
        self.reporter.emit(Event::Evaluation { metrics: report.metrics, tasks: report.tasks, best });
        for sample in report.samples {
            self.reporter.emit(Event::EvaluationSample(sample));
        }
        self.clock.trainer_idle();
        let record = Record::Evaluated { policy: self.context.policy, version };
        Ok(Some(JournaledEvent::recorded(SchedulerEvent::Evaluated, record)))
    }

    pub(crate) fn on_loaded(&mut self, loaded: LoadResult) -> Result<(), StageError> {
        let LoadResult { version, start, result } = loaded;
        result.map_err(|error| self.worker_failed(error))?;
        self.stall.alive();
        let interval = (start, Instant::now());
        self.reporter.activity(Lane::Rollout, Activity::LoadWeights, interval, version.0, None);
        Ok(())
    }

    /// Reports how many episodes of the groups in progress are generated and scored; replaced groups count.
    fn report_rollout_progress(&mut self) {
        let Some(runner) = self.groups.source().rollouts() else { return };
        let each = u64::from(runner.episodes_per_group());
        let (ready, scored_in_flight) = self.groups.progress();
        let complete = ready + self.counters.filtered.values().sum::<u64>();
        let total = (complete + self.groups.in_flight().len() as u64) * each;
        if total == 0 {
            return;
        }
        let scored = complete * each + scored_in_flight;
        let generated = scored + runner.counters().judging();
        for (phase, done) in [(Phase::Rollout, generated), (Phase::Reward, scored)] {
            self.reporter.emit(Event::Progress { phase, done: done.min(total), total, detail: None });
        }
    }

    fn report_training_progress(&mut self) {
        if self.scheduler.counts().in_batch == 0 {
            return;
        }
        let Some(progress) = self.trainer.as_ref().map(crate::trainer::TrainerHandle::progress) else {
            return;
        };
        let (done, total) = progress.steps();
        if total > 0 {
            let detail = progress.describe_work();
            self.reporter.emit(Event::Progress { phase: Phase::Train, done, total, detail });
        }
    }
}
