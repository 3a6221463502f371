//! One stage: the scheduler's commands, carried out.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rloom_algo::AlgorithmState;
use rloom_core::{Group, PolicyVersion, Role, Ticket};
use rloom_model::OptimizerSettings;
use rloom_ops::Ctx;
use rloom_rollout::{EmbeddedEngine, InFlight, RolloutEngine};
use rloom_sched::{Command, Event as Happened, Scheduler};
use rloom_text::Tokenizer;
use rloom_train::{EmbeddedTrainEngine, TrainEngine};
use tokio::task::JoinSet;

use crate::batch::{BatchTraining, Engines, Moment};
use crate::checkpoint::{CheckpointName, Checkpoints};
use crate::directory::RunDirectory;
use crate::episodes::{DemonstrationSource, FinishedGroup, GroupSource};
use crate::evaluate::Evaluator;
use crate::events::{Event, EventStream, Phase, StageOutline};
use crate::journal::{Journal, Record};
use crate::state::{Best, TrainerState};
use crate::{RunError, StopFlag};

/// How often progress is looked at while groups are generated.
const TICK: Duration = Duration::from_millis(100);

/// Where a stage's groups come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Worked examples; nothing is sampled.
    Demonstrations(DemonstrationSource),
    /// Sampled and scored.
    Rollouts(Arc<GroupSource<EmbeddedEngine>>),
}

/// How the checkpoints of a run are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    pub(crate) last: usize,
    pub(crate) every: u64,
}

/// What a stage needs beside its scheduler.
#[derive(Debug)]
pub(crate) struct StageParts {
    pub(crate) index: u32,
    pub(crate) outline: StageOutline,
    /// Steps of the stages before.
    pub(crate) base: u64,
    /// Groups of a batch.
    pub(crate) batch_groups: u64,
    pub(crate) seed: u64,
    pub(crate) source: Source,
    pub(crate) engine: Option<Arc<EmbeddedEngine>>,
    pub(crate) evaluator: Option<Evaluator<EmbeddedEngine>>,
    pub(crate) engines: Engines<EmbeddedTrainEngine>,
    pub(crate) training: BatchTraining,
    pub(crate) optimizer: OptimizerSettings,
    /// Optimiser steps of the whole stage, for the learning-rate schedule.
    pub(crate) total_optimizer_steps: u64,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) ctx: Ctx,
    pub(crate) keeping: Keeping,
    /// Completions of each step that are shown.
    pub(crate) shown_samples: usize,
    /// Longest wait for any group.
    pub(crate) stall: Duration,
}

/// How a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All its batches are trained.
    Done,
    /// It was asked to stop and has saved.
    Interrupted,
}

/// A stage at work.
pub(crate) struct Stage<'r, 's> {
    pub(crate) parts: StageParts,
    pub(crate) scheduler: Scheduler,
    pub(crate) directory: &'r RunDirectory,
    pub(crate) checkpoints: &'r Checkpoints,
    pub(crate) events: &'r mut EventStream<'s>,
    pub(crate) stop: &'r StopFlag,
    pub(crate) journal: Journal,
    /// Groups that an earlier attempt generated and scored.
    pub(crate) recovered: BTreeMap<Ticket, Group>,
    /// Batches that an earlier attempt cut.
    pub(crate) cuts: BTreeMap<u64, Vec<Ticket>>,
    pub(crate) optimizer_steps: u64,
    /// What the algorithm carries from batch to batch.
    pub(crate) algorithm: AlgorithmState,
    pub(crate) drawn: Drawn,
    pub(crate) best: Option<Best>,
    pub(crate) saved: Option<(u64, PathBuf)>,
    pub(crate) ready: BTreeMap<Ticket, Group>,
    pub(crate) running: JoinSet<Result<FinishedGroup, (Ticket, u64, String)>>,
    pub(crate) clock: RolloutClock,
}

/// Times of the batch under way.
#[derive(Debug, Default)]
pub(crate) struct RolloutClock {
    started: Option<Instant>,
    pub(crate) rollout: Duration,
    pub(crate) reward: Duration,
    pub(crate) checkpoint: Duration,
    pub(crate) sampled_tokens: usize,
}

/// Groups that were generated.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    /// Tokens sampled in the stage so far.
    pub(crate) tokens: u64,
    /// Groups replaced by others since the last batch, by reason.
    pub(crate) filtered: BTreeMap<&'static str, u64>,
}

impl Stage<'_, '_> {
    /// Runs the stage to its end, or to where it is asked to stop.
    pub(crate) async fn run(&mut self) -> Result<Ended, RunError> {
        self.publish().await?;
        let mut happened = VecDeque::from([Happened::Begin]);
        let mut told_to_stop = false;
        loop {
            if self.stop.now() {
                return Err(RunError::StoppedNow { path: self.directory.path().to_owned() });
            }
            if self.stop.after_this_step() && !told_to_stop {
                told_to_stop = true;
                // Before what else is due: the end of a batch would otherwise begin the next one.
                happened.push_front(Happened::StopRequested);
            }
            let Some(event) = happened.pop_front() else {
                happened.push_back(self.next_group().await?);
                continue;
            };
            let evaluated = event == Happened::Evaluated;
            let commands = self.scheduler.handle(event)?;
            if evaluated && self.is_best() {
                self.save()?;
            }
            for command in commands {
                match command {
                    Command::StartGroup(ticket) => happened.extend(self.start(ticket).await?),
                    Command::TrainBatch { batch, tickets } => {
                        self.train(batch, &tickets).await?;
                        happened.push_back(Happened::BatchTrained);
                    }
                    Command::Drop(ticket, _) => {
                        self.ready.remove(&ticket);
                    }
                    Command::Evaluate(version) => {
                        self.evaluate(version).await?;
                        happened.push_back(Happened::Evaluated);
                    }
                    Command::Checkpoint(version) => {
                        if self.saved.as_ref().is_none_or(|(saved, _)| *saved != version.0) {
                            self.save()?;
                        }
                        happened.push_back(Happened::Checkpointed);
                    }
                    Command::Finish => {
                        let done = self.scheduler.version().0 >= self.parts.outline.steps;
                        return Ok(if done { Ended::Done } else { Ended::Interrupted });
                    }
                }
            }
        }
    }

    /// Hands the current weights to the rollout engine.
    async fn publish(&mut self) -> Result<(), RunError> {
        let version = self.scheduler.version();
        self.parts.engines.policy.set_version(version);
        if let Some(engine) = &self.parts.engine {
            let weights = self.parts.engines.policy.publish().map_err(|e| RunError::Setup(e.to_string()))?;
            engine.load(&weights, InFlight::Finish).await.map_err(|e| RunError::Setup(e.to_string()))?;
        }
        Ok(())
    }

    /// Starts a group; one that is there already is reported at once.
    async fn start(&mut self, ticket: Ticket) -> Result<Option<Happened>, RunError> {
        let version = self.scheduler.version();
        if let Some(group) = self.recovered.remove(&ticket) {
            return self.arrived(group).map(Some);
        }
        match &self.parts.source {
            Source::Demonstrations(source) => {
                let group = source.group(ticket).await.map_err(|e| self.group_failed(e))?;
                self.ready.insert(ticket, group);
                Ok(Some(Happened::GroupReady { ticket, oldest: version }))
            }
            Source::Rollouts(source) => {
                self.clock.started.get_or_insert_with(Instant::now);
                let source = Arc::clone(source);
                self.running.spawn(async move { source.run(ticket).await });
                Ok(None)
            }
        }
    }

    fn group_failed(&self, (ticket, task, reason): (Ticket, u64, String)) -> RunError {
        RunError::Group {
            stage: self.parts.outline.name.clone(),
            step: self.scheduler.version().0 + 1,
            ticket: ticket.0,
            task,
            reason,
            checkpoint: self.last_good(),
        }
    }

    /// What can be resumed from, for messages.
    fn last_good(&self) -> String {
        match &self.saved {
            Some((_, path)) => path.display().to_string(),
            None => "none in this stage; it begins again from its input".to_owned(),
        }
    }

    /// Waits for the next group that is generated and scored, and journals it.
    async fn next_group(&mut self) -> Result<Happened, RunError> {
        let start = Instant::now();
        let finished = loop {
            match tokio::time::timeout(TICK, self.running.join_next()).await {
                Ok(Some(Ok(finished))) => break finished,
                Ok(Some(Err(panic))) => {
                    return Err(RunError::Setup(format!("a rollout task ended unexpectedly: {panic}")));
                }
                Ok(None) => {
                    return Err(RunError::Setup("the scheduler waits, but nothing is under way".into()));
                }
                Err(_) => {
                    self.rollout_progress();
                    if self.stop.now() {
                        return Err(RunError::StoppedNow { path: self.directory.path().to_owned() });
                    }
                    if start.elapsed() > self.parts.stall {
                        return Err(self.stalled());
                    }
                }
            }
        };
        let FinishedGroup { group, reward_time } = finished.map_err(|e| self.group_failed(e))?;
        self.clock.reward += reward_time;
        self.clock.sampled_tokens +=
            group.episodes.iter().map(rloom_core::Episode::policy_tokens).sum::<usize>();
        self.journal.append(&Record::Group(group.clone()))?;
        let arrived = self.arrived(group)?;
        if self.running.is_empty()
            && let Some(started) = self.clock.started.take()
        {
            self.clock.rollout += started.elapsed();
            self.rollout_progress();
        }
        Ok(arrived)
    }

    /// Takes a group that is generated and scored, or says that another is to come in its place. The same group always
    /// has the same verdict, so a resumed run replaces the same ones.
    fn arrived(&mut self, group: Group) -> Result<Happened, RunError> {
        let ticket = group.ticket;
        self.drawn.tokens +=
            group.episodes.iter().map(rloom_core::Episode::policy_tokens).sum::<usize>() as u64;
        let filters = self.parts.training.algorithm.filters;
        let trained = group.episodes.iter().filter(|e| e.role == Role::Train);
        let rewards: Vec<Option<f64>> = trained.clone().map(|e| e.rewards.total()).collect();
        let rule = self.parts.training.outcome;
        let outcomes: Vec<Option<f64>> = trained.map(|e| rule.outcome(&e.rewards)).collect();
        let Some(reason) = filters.verdict(&outcomes, &rewards) else {
            let oldest = group.oldest_version().unwrap_or(self.scheduler.version());
            self.ready.insert(ticket, group);
            return Ok(Happened::GroupReady { ticket, oldest });
        };
        *self.drawn.filtered.entry(reason.name()).or_default() += 1;
        let filtered: u64 = self.drawn.filtered.values().sum();
        let batch = self.parts.batch_groups;
        if filtered + batch > u64::from(filters.max_draws) * batch {
            return Err(RunError::NothingLeft {
                stage: self.parts.outline.name.clone(),
                step: self.scheduler.version().0 + 1,
                filtered: self.drawn.filtered.iter().map(|(name, n)| format!("{n} {name}")).collect(),
                draws: filters.max_draws,
                checkpoint: self.last_good(),
            });
        }
        Ok(Happened::GroupFiltered(ticket))
    }

    fn stalled(&self) -> RunError {
        RunError::Stalled {
            stage: self.parts.outline.name.clone(),
            waiter: "the driver".into(),
            awaited: format!("any of {} groups that are being generated and scored", self.running.len()),
            seconds: self.parts.stall.as_secs(),
        }
    }

    fn rollout_progress(&mut self) {
        if let Source::Rollouts(source) = &self.parts.source {
            let replaced: u64 = self.drawn.filtered.values().sum();
            let groups = (self.running.len() + self.ready.len()) as u64 + replaced;
            let total = groups * u64::from(source.episodes_per_group());
            let generated = source.counters.generated.load(Ordering::Relaxed);
            let scored = source.counters.scored.load(Ordering::Relaxed);
            self.events.emit(Event::Progress { phase: Phase::Rollout, done: generated.min(total), total });
            self.events.emit(Event::Progress { phase: Phase::Reward, done: scored.min(total), total });
        }
    }

    /// Trains on a batch, publishes, and tells of it.
    async fn train(&mut self, batch: u64, tickets: &[Ticket]) -> Result<(), RunError> {
        self.record_cut(batch, tickets)?;
        let groups: Vec<Group> = tickets.iter().filter_map(|ticket| self.ready.remove(ticket)).collect();
        if let Some(engine) = &self.parts.engine {
            // The optimiser then writes in place.
            engine.release().await.map_err(|e| RunError::Setup(e.to_string()))?;
        }
        let start = Instant::now();
        let before = self.optimizer_steps;
        let total = self.parts.total_optimizer_steps;
        let optimizer = self.parts.optimizer.clone();
        let rate = move |step: u64| optimizer.learning_rate_at(before + step, total);
        let moment = Moment { version: PolicyVersion(batch), state: self.algorithm, learning_rate: &rate };
        let events = &mut *self.events;
        let mut progress = |done, total| events.emit(Event::Progress { phase: Phase::Train, done, total });
        let trained = self.parts.training.train(&mut self.parts.engines, &groups, &moment, &mut progress);
        let report = trained.map_err(|error| self.training_failed(batch, error))?;
        let train_time = start.elapsed();
        self.optimizer_steps += report.optimizer_steps;
        self.algorithm = report.state;
        self.events.place(&self.parts.outline.name, self.parts.base, batch + 1);
        self.tell_step(&groups, &report, train_time);
        self.parts.engines.policy.set_version(PolicyVersion(batch + 1));
        if let Some(engine) = &self.parts.engine {
            let weights = self.parts.engines.policy.publish().map_err(|e| RunError::Setup(e.to_string()))?;
            engine.load(&weights, InFlight::Finish).await.map_err(|e| RunError::Setup(e.to_string()))?;
        }
        Ok(())
    }

    /// Journals the cut, or checks it against the one that an earlier attempt recorded.
    fn record_cut(&mut self, batch: u64, tickets: &[Ticket]) -> Result<(), RunError> {
        if matches!(self.parts.source, Source::Demonstrations(_)) {
            return Ok(());
        }
        match self.cuts.remove(&batch) {
            Some(recorded) if recorded != tickets => Err(RunError::CutMismatch {
                stage: self.parts.outline.name.clone(),
                batch,
                recorded: recorded.iter().map(|t| t.0).collect(),
                now: tickets.iter().map(|t| t.0).collect(),
            }),
            Some(_) => Ok(()),
            None => self.journal.append(&Record::Cut { batch, tickets: tickets.to_vec() }),
        }
    }

    fn training_failed(&self, batch: u64, error: rloom_train::TrainError) -> RunError {
        let checkpoint = self.last_good();
        match error {
            rloom_train::TrainError::NotFinite { what, keys } => RunError::NotFinite {
                stage: self.parts.outline.name.clone(),
                step: batch + 1,
                what: what.to_owned(),
                samples: rloom_train::TrainError::sample_list(&keys),
                checkpoint,
            },
            other => RunError::Setup(format!(
                "stage `{}`, step {}: {other}\nlast good checkpoint: {checkpoint}",
                self.parts.outline.name,
                batch + 1
            )),
        }
    }

    async fn evaluate(&mut self, version: PolicyVersion) -> Result<(), RunError> {
        let Some(evaluator) = &self.parts.evaluator else {
            return Ok(());
        };
        self.events.place(&self.parts.outline.name, self.parts.base, version.0);
        evaluator.counters.scored.store(0, Ordering::Relaxed);
        let total = evaluator.completions();
        let mut run = std::pin::pin!(evaluator.run(24));
        let deadline = Instant::now() + self.parts.stall;
        let report = loop {
            if let Ok(report) = tokio::time::timeout(TICK, run.as_mut()).await {
                break report.map_err(RunError::Setup)?;
            }
            let done = evaluator.counters.scored.load(Ordering::Relaxed);
            self.events.emit(Event::Progress { phase: Phase::Evaluate, done, total });
            if self.stop.now() {
                return Err(RunError::StoppedNow { path: self.directory.path().to_owned() });
            }
            if Instant::now() > deadline {
                return Err(RunError::Stalled {
                    stage: self.parts.outline.name.clone(),
                    waiter: "the evaluation".into(),
                    awaited: format!("{} of {total} held-out completions", total - done),
                    seconds: self.parts.stall.as_secs(),
                });
            }
        };
        let best = self.best.as_ref().is_none_or(|best| report.accuracy > best.accuracy);
        if best {
            self.best = Some(Best {
                accuracy: report.accuracy,
                stage: self.parts.outline.name.clone(),
                step: version.0,
            });
        }
        self.events.emit(Event::Evaluation { metrics: report.metrics, tasks: report.tasks, best });
        for sample in report.samples {
            self.events.emit(Event::EvaluationSample(sample));
        }
        Ok(())
    }

    /// Whether the current version, just evaluated, is the best so far.
    fn is_best(&self) -> bool {
        let version = self.scheduler.version().0;
        version > 0
            && self
                .best
                .as_ref()
                .is_some_and(|best| best.stage == self.parts.outline.name && best.step == version)
    }

    /// Writes a checkpoint of the current version, then forgets the journal that it contains.
    fn save(&mut self) -> Result<(), RunError> {
        let start = Instant::now();
        let version = self.scheduler.version().0;
        let name = CheckpointName {
            stage: self.parts.index,
            step: version,
            stage_name: self.parts.outline.name.clone(),
        };
        let state = TrainerState {
            stage: self.parts.index,
            stage_name: self.parts.outline.name.clone(),
            stage_base: self.parts.base,
            scheduler: self.scheduler.state(),
            optimizer_steps: self.optimizer_steps,
            algorithm: self.algorithm,
            sampled_tokens: self.drawn.tokens,
            best: self.best.clone(),
            isa: self.parts.ctx.isa().name().to_owned(),
            seed: self.parts.seed,
        };
        let (path, bytes) = self.checkpoints.write(&name, |folder| {
            self.parts.engines.save(folder)?;
            self.parts.tokenizer.save(folder).map_err(|e| RunError::Setup(e.to_string()))?;
            state.save(folder)
        })?;
        self.checkpoints.point("latest", &path)?;
        if self.is_best() {
            self.checkpoints.point("best", &path)?;
        }
        let best = self
            .best
            .as_ref()
            .map(|best| self.directory.checkpoints().join(format!("{}-step-{:06}", best.stage, best.step)));
        self.checkpoints.prune(self.parts.keeping.last, self.parts.keeping.every, best.as_deref())?;
        self.journal = Journal::open(&self.directory.journal(), self.parts.index, version)?.0;
        self.clock.checkpoint += start.elapsed();
        let relative = path.strip_prefix(self.directory.path()).unwrap_or(&path).display().to_string();
        self.events.place(&self.parts.outline.name, self.parts.base, version);
        self.events.emit(Event::Checkpoint { path: relative, bytes });
        self.saved = Some((version, path));
        Ok(())
    }
}
