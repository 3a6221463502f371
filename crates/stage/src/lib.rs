//! One stage: events of the workers in, commands of the scheduler out.
//!
//! The driver is one task on one thread. Groups are tasks, training is a thread ([`TrainerThread`]), the rollout engine has
//! its workers. [`Stage::run`] receives their events; each is recorded in the journal and goes to the scheduler, whose
//! commands start the next work. At staleness 0 the same loop alternates between rollout and training.
//!
//! Every part owns its state: [`StageGroups`], [`WeightPublisher`], [`StageEvaluation`], [`StageCheckpoints`],
//! [`StageJournal`], and inside this crate the clock of the step and the detection of stalls.

mod batches;
mod checkpoints;
mod clock;
mod commands;
mod domains;
mod error;
mod evaluation;
mod events;
mod groups;
mod journal;
mod league;
mod policies;
mod probe;
mod recovery;
mod reporter;
mod reuse;
mod stall;
mod stall_report;
mod step_report;
mod stop;
mod trainer;
mod trainer_progress;
mod validation;
mod weights;
mod writer;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_algo::AlgorithmState;
use rloom_core::{Group, PolicyId, PolicyVersion};
use rloom_engine::{RolloutEngine, RolloutStatistics, TrainEngine};
use rloom_learn::BatchTrainer;
use rloom_sched::{ScheduleSettings, Scheduler, SchedulerEvent};
use rloom_store::checkpoint::{Best, GroupCounters};
use rloom_store::directory::RunDirectory;
use rloom_store::journal::Record;
use rloom_telemetry::{RolloutWriter, StageOutline};
use rloom_text::Tokenizer;

pub use checkpoints::{CheckpointRetention, StageCheckpoints};
pub use domains::StageDomains;
pub use error::{Contradiction, StageError, WorkerError};
pub use evaluation::StageEvaluation;
pub use groups::{GroupSource, StageGroups};
pub use journal::StageJournal;
pub use league::StageLeague;
pub use policies::StagePolicies;
pub use probe::WeightProbe;
pub use recovery::restore_groups;
pub use stop::StopFlag;
pub use trainer::{TrainerHandle, TrainerThread, restore_models};
pub use validation::StageValidation;
pub use weights::{Publication, WeightPublisher};
pub use writer::PolicyWriter;

use clock::StepClock;
use reporter::Reporter;
use stall::StallDetector;

/// Interval of progress reports and stall checks.
const TICK: Duration = Duration::from_millis(100);

/// Fixed properties of a stage.
#[derive(Debug)]
pub struct StageContext {
    /// Index in the recipe.
    pub index: u32,
    /// The stage as events announce it.
    pub outline: StageOutline,
    /// Steps of the stages before.
    pub base: u64,
    /// The main policy that is trained.
    pub policy: PolicyId,
    /// The other policies.
    pub policies: StagePolicies,
    /// Groups of a batch.
    pub groups_per_batch: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Quotas, filters and curriculum by domain.
    pub domains: StageDomains,
    /// Training on batches; determines the filters and outcomes of groups.
    pub training: BatchTrainer,
    /// Staleness, oversampling and the policy for weight updates.
    pub schedule: ScheduleSettings,
    /// Tokenizer of the policy.
    pub tokenizer: Arc<Tokenizer>,
    /// Numeric path of the trainer.
    pub numeric_path: String,
    /// Completions of each step in the event stream.
    pub shown_samples: usize,
    /// Number of last steps whose rollouts are kept; `None` for all.
    pub keep_rollouts: Option<u64>,
    /// Longest time without progress.
    pub stall_timeout: Duration,
}

/// State of the learner between batches.
#[derive(Debug, Clone, Default)]
pub struct LearnerState {
    /// Optimiser steps of the stage.
    pub optimizer_steps: u64,
    /// Those that were skipped because a number was not finite.
    pub skipped_steps: u64,
    /// State of the algorithm.
    pub algorithm: AlgorithmState,
}

/// Reason why a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageEnd {
    /// All its batches are trained.
    Done,
    /// It was asked to stop, and has saved.
    Interrupted,
}

/// An event for the scheduler, with the record that is journalled first.
#[derive(Debug)]
struct JournaledEvent {
    event: SchedulerEvent,
    record: Option<Record>,
}

impl JournaledEvent {
    fn recorded(event: SchedulerEvent, record: Record) -> Self {
        Self { event, record: Some(record) }
    }
}

impl From<SchedulerEvent> for JournaledEvent {
    fn from(event: SchedulerEvent) -> Self {
        Self { event, record: None }
    }
}

/// Parts of a stage that the caller builds.
#[derive(Debug)]
pub struct StageParts<'r, R, T> {
    /// Its fixed properties.
    pub context: StageContext,
    /// Decides when groups start and batches train.
    pub scheduler: Scheduler,
    /// Directory of the run.
    pub directory: &'r RunDirectory,
    /// Records of this attempt and of earlier ones.
    pub journal: StageJournal,
    /// Source of groups, and those in flight.
    pub groups: StageGroups<R>,
    /// Publishes weights to the rollout engine.
    pub weights: WeightPublisher<R>,
    /// Earlier versions of policies as opponents.
    pub leagues: Vec<StageLeague>,
    /// Held-out evaluation.
    pub evaluation: StageEvaluation<R>,
    /// Loss on held-out rows, of a stage that learns from rows.
    pub validation: Option<StageValidation>,
    /// Checkpoints written and to be written.
    pub checkpoints: StageCheckpoints,
    /// The training thread.
    pub trainer: TrainerHandle<T>,
    /// State of the learner to start from.
    pub learner: LearnerState,
    /// Counters to start from.
    pub counters: GroupCounters,
    /// Requests to stop.
    pub stop: &'r StopFlag,
}

/// A running stage.
pub struct Stage<'r, 's, R, T> {
    context: StageContext,
    scheduler: Scheduler,
    directory: &'r RunDirectory,
    reporter: Reporter<'r, 's>,
    rollouts: RolloutWriter,
    journal: StageJournal,
    groups: StageGroups<R>,
    weights: WeightPublisher<R>,
    leagues: Vec<StageLeague>,
    evaluation: StageEvaluation<R>,
    validation: Option<StageValidation>,
    /// Groups of the held-out rows that are validated.
    held_out: Arc<[Group]>,
    checkpoints: StageCheckpoints,
    /// `None` once the training thread has died.
    trainer: Option<TrainerHandle<T>>,
    learner: LearnerState,
    counters: GroupCounters,
    clock: StepClock,
    stall: StallDetector,
    next_tick: tokio::time::Instant,
    stop: &'r StopFlag,
    /// Events that the scheduler gets before any other.
    pending: VecDeque<JournaledEvent>,
}

impl<R, T> fmt::Debug for Stage<'_, '_, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("name", &self.context.outline.name).finish_non_exhaustive()
    }
}

/// A stage that has ended.
#[derive(Debug)]
pub struct EndedStage<T> {
    /// Reason for the end.
    pub end: StageEnd,
    /// The best version so far.
    pub best: Option<Best>,
    /// Folder of the newest checkpoint.
    pub newest: Option<PathBuf>,
    /// The training thread; `None` if it has died.
    pub trainer: Option<TrainerHandle<T>>,
}

impl<'r, 's, R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'r, 's, R, T> {
    /// Creates a stage that reports to `events`.
    pub fn new(parts: StageParts<'r, R, T>, events: &'r mut rloom_telemetry::EventStream<'s>) -> Self {
        let StageParts {
            context,
            scheduler,
            directory,
            journal,
            groups,
            weights,
            leagues,
            evaluation,
            validation,
            checkpoints,
            trainer,
            learner,
            counters,
            stop,
        } = parts;
        let samples = groups.source().samples();
        Self {
            reporter: Reporter::new(events, &context.outline.name, context.base, samples),
            rollouts: RolloutWriter::new(directory.path(), &context.outline.name, context.keep_rollouts),
            clock: StepClock::default(),
            stall: StallDetector::new(context.stall_timeout),
            next_tick: tokio::time::Instant::from_std(Instant::now()) + TICK,
            pending: VecDeque::new(),
            trainer: Some(trainer),
            context,
            scheduler,
            directory,
            journal,
            groups,
            weights,
            leagues,
            evaluation,
            validation,
            held_out: Arc::default(),
            checkpoints,
            learner,
            counters,
            stop,
        }
    }

    /// Runs the stage to its end, or to where it is asked to stop.
    pub async fn run(mut self) -> Result<EndedStage<T>, StageError> {
        let (stop, directory) = (self.stop, self.directory);
        let end = tokio::select! {
            biased;
            // Whatever the driver waits for: the journal is consistent at every instant.
            () = stop.wait_for_now() => {
                return Err(StageError::StoppedNow { path: directory.path().to_owned() });
            }
            end = self.drive() => end,
        };
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                // Its other models go, too: a restart finds the devices free.
                if let Some(trainer) = self.trainer.take().filter(|_| error.lost_trainer().is_some()) {
                    trainer.abandon();
                }
                return Err(error);
            }
        };
        Ok(EndedStage {
            end,
            best: self.evaluation.best().cloned(),
            newest: self.checkpoints.newest().map(std::path::Path::to_owned),
            trainer: self.trainer,
        })
    }

    async fn drive(&mut self) -> Result<StageEnd, StageError> {
        self.publish_initial().await?;
        self.start_validation().await?;
        self.clock.restart(self.engine_statistics());
        self.stall.alive();
        let mut stop_requested = false;
        let mut event = JournaledEvent::from(SchedulerEvent::Begin);
        loop {
            // The recorded events are replayed first.
            if self.stop.after_this_step() && !stop_requested && self.journal.is_live() {
                stop_requested = true;
                let stop = JournaledEvent::recorded(SchedulerEvent::StopRequested, Record::StopRequested);
                // Before the current event: the end of a batch would start the next one.
                if let Some(end) = self.handle(stop).await? {
                    return Ok(end);
                }
            }
            if let Some(end) = self.handle(event).await? {
                return Ok(end);
            }
            event = self.next().await?;
        }
    }

    /// Returns the next event: pending, replayed or live.
    async fn next(&mut self) -> Result<JournaledEvent, StageError> {
        if let Some(event) = self.pending.pop_front() {
            return Ok(event);
        }
        if let Some(event) = self.replay_next().await? {
            return Ok(event);
        }
        self.wait_for_event().await
    }

    /// Waits for an event.
    async fn wait_for_event(&mut self) -> Result<JournaledEvent, StageError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            if let Some(event) = self.wait().await? {
                return Ok(event);
            }
        }
    }

    /// Journals a record. A stage without rollouts is repeatable without a journal.
    fn record(&mut self, record: &Record) -> Result<(), StageError> {
        if self.groups.source().samples() {
            self.journal.append(record)?;
        }
        Ok(())
    }

    /// Statistics of the rollout engine; zeros without one.
    fn engine_statistics(&self) -> RolloutStatistics {
        self.weights.engine().map(|engine| engine.statistics()).unwrap_or_default()
    }

    fn stage_name(&self) -> String {
        self.context.outline.name.clone()
    }

    /// Number of the current step, from 1.
    fn step(&self) -> u64 {
        self.scheduler.version().0 + 1
    }

    /// The checkpoint to resume from, for messages.
    fn last_checkpoint(&self) -> String {
        match self.checkpoints.newest() {
            Some(path) => path.display().to_string(),
            None => "none in this stage; it restarts from its input".to_owned(),
        }
    }

    /// The error for a worker that failed.
    fn worker_failed(&self, cause: impl Into<WorkerError>) -> StageError {
        StageError::Worker {
            stage: self.stage_name(),
            step: self.step(),
            cause: cause.into(),
            checkpoint: self.last_checkpoint(),
        }
    }

    /// Notes if groups are in flight.
    fn note_rollouts(&mut self) {
        let version = self.scheduler.version();
        self.clock.rollouts(self.groups.running() > 0, &mut self.reporter, version);
    }

    /// Notes that the trainer has work.
    fn note_trainer_busy(&mut self) {
        let version = self.scheduler.version();
        self.clock.trainer_busy(&mut self.reporter, version);
    }

    fn set_step(&mut self, version: PolicyVersion) {
        self.reporter.set_step(version);
    }
}
