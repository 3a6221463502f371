//! One stage: the scheduler's commands, carried out.
//!
//! The driver is one task on one thread. Groups are tasks beside it, training is a thread of its own
//! ([`crate::trainer`]), the rollout engine has its lanes; whatever comes of them reaches the driver in
//! [`Stage::wait`], is journalled, and is told to the scheduler, whose commands start the next work. At staleness 0 the
//! same loop takes turns.

mod evaluating;
mod groups;
mod publishing;
mod replaying;
mod saving;
mod training;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_algo::AlgorithmState;
use rloom_config::ScheduleSettings;
use rloom_core::PolicyVersion;
use rloom_rollout::EmbeddedEngine;
use rloom_sched::{End, Scheduler, SchedulerCommand, SchedulerEvent};
use rloom_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::batch::BatchTraining;
use crate::checkpoint::Checkpoints;
use crate::demonstrations::DemonstrationSource;
use crate::directory::RunDirectory;
use crate::episodes::GroupSource;
use crate::evaluate::Evaluator;
use crate::events::{Event, EventStream, StageOutline};
use crate::journal::{Journal, Record};
use crate::state::Best;
use crate::trainer::Trainer;
use crate::{RunError, StopFlag};

use evaluating::Evaluation;
pub(crate) use groups::Groups;
pub(crate) use publishing::Publisher;
pub(crate) use replaying::{Replay, restore};
pub(crate) use watch::Watch;

/// How often progress is looked at while nothing happens.
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

/// What a stage needs beside its scheduler and its trainer.
#[derive(Debug)]
pub(crate) struct StageParts {
    pub(crate) index: u32,
    pub(crate) outline: StageOutline,
    /// Steps of the stages before.
    pub(crate) base: u64,
    /// Groups of a batch.
    pub(crate) groups_per_batch: u64,
    pub(crate) seed: u64,
    pub(crate) source: Source,
    pub(crate) engine: Option<Arc<EmbeddedEngine>>,
    pub(crate) evaluator: Option<Arc<Evaluator<EmbeddedEngine>>>,
    pub(crate) training: BatchTraining,
    pub(crate) schedule: ScheduleSettings,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// How it computes: the instruction set, or how products of bf16 numbers are summed.
    pub(crate) isa: String,
    pub(crate) keeping: Keeping,
    /// Completions of each step that are shown.
    pub(crate) shown_samples: usize,
    /// Longest time in which nothing happens.
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

/// What the scheduler is told, and what is recorded of it first: the journal has the order in which it was told.
#[derive(Debug)]
pub(crate) struct Told {
    event: SchedulerEvent,
    record: Option<Record>,
}

impl Told {
    fn recorded(event: SchedulerEvent, record: Record) -> Self {
        Self { event, record: Some(record) }
    }
}

impl From<SchedulerEvent> for Told {
    fn from(event: SchedulerEvent) -> Self {
        Self { event, record: None }
    }
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
    pub(crate) replay: Replay,
    pub(crate) groups: Groups,
    pub(crate) trainer: Option<Trainer>,
    pub(crate) publisher: Publisher,
    pub(crate) evaluation: Option<Evaluation>,
    /// What is to be told to the scheduler before anything else.
    pub(crate) pending: VecDeque<Told>,
    pub(crate) optimizer_steps: u64,
    /// What the algorithm carries from batch to batch.
    pub(crate) algorithm: AlgorithmState,
    pub(crate) drawn: Drawn,
    pub(crate) best: Option<Best>,
    pub(crate) saved: Option<(u64, PathBuf)>,
    pub(crate) saving: Option<u64>,
    /// Whether the scheduler waits for a checkpoint.
    pub(crate) checkpoint_asked: bool,
    pub(crate) watch: Watch,
}

/// Groups that were generated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Drawn {
    /// Tokens of the groups that became complete in the stage so far.
    pub(crate) tokens: u64,
    /// Groups replaced by others since the last batch, by reason.
    pub(crate) filtered: BTreeMap<String, u64>,
    /// Groups that failed since the last batch.
    pub(crate) failed: u64,
}

impl Stage<'_, '_> {
    /// Runs the stage to its end, or to where it is asked to stop.
    pub(crate) async fn run(&mut self) -> Result<Ended, RunError> {
        self.publish_first().await?;
        self.watch.begin(self.engine_statistics());
        let mut told_to_stop = false;
        let mut happened = Told::from(SchedulerEvent::Begin);
        loop {
            self.stop_at_once()?;
            // What was recorded is replayed first: it has happened.
            if self.stop.after_this_step() && !told_to_stop && self.replay.is_over() {
                told_to_stop = true;
                let stop = Told::recorded(SchedulerEvent::StopRequested, Record::StopRequested);
                // Before what else is due: the end of a batch would otherwise begin the next one.
                if let Some(ended) = self.tell(stop).await? {
                    return Ok(ended);
                }
            }
            if let Some(ended) = self.tell(happened).await? {
                return Ok(ended);
            }
            happened = self.next().await?;
        }
    }

    /// Tells the scheduler what happened and does what it says.
    async fn tell(&mut self, told: Told) -> Result<Option<Ended>, RunError> {
        let Told { event, record } = told;
        if let Some(record) = record {
            self.record(&record)?;
        }
        let evaluated = event == SchedulerEvent::Evaluated;
        let start = Instant::now();
        let commands = self.scheduler.handle(event)?;
        self.watch.decided(start.elapsed());
        // What is let go is no part of a checkpoint any more.
        let (ends, commands): (Vec<SchedulerCommand>, Vec<SchedulerCommand>) = commands
            .into_iter()
            .partition(|c| matches!(c, SchedulerCommand::Drop(..) | SchedulerCommand::Defer(_)));
        for command in ends {
            match command {
                SchedulerCommand::Drop(ticket, end) => self.let_go(ticket, end_name(end)),
                SchedulerCommand::Defer(ticket) => self.let_go(ticket, "put_off"),
                _ => {}
            }
        }
        if evaluated && self.is_best() {
            self.save_best()?;
        }
        for command in commands {
            match command {
                SchedulerCommand::Drop(..) | SchedulerCommand::Defer(_) => {}
                SchedulerCommand::StartGroup(ticket) => self.start(ticket).await?,
                SchedulerCommand::TrainBatch { batch, tickets } => self.train(batch, &tickets).await?,
                SchedulerCommand::Evaluate(version) => self.evaluate(version).await?,
                SchedulerCommand::Checkpoint(version) => self.checkpoint(version)?,
                SchedulerCommand::Finish => {
                    let done = self.scheduler.version().0 >= self.parts.outline.steps;
                    if self.replay.ends_an_attempt() {
                        self.pending.push_back(SchedulerEvent::StopWithdrawn.into());
                        continue;
                    }
                    if !done {
                        self.keep_unfinished().await?;
                    }
                    return Ok(Some(if done { Ended::Done } else { Ended::Interrupted }));
                }
            }
        }
        self.watch_rollouts();
        Ok(None)
    }

    /// What happened next, recorded or now.
    async fn next(&mut self) -> Result<Told, RunError> {
        if let Some(event) = self.pending.pop_front() {
            return Ok(event);
        }
        if let Some(event) = self.replay_next().await? {
            return Ok(event);
        }
        self.wait_for_event().await
    }

    /// What happens next. Looks at each waking whether it is to stop: many small things may happen before a big one.
    async fn wait_for_event(&mut self) -> Result<Told, RunError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            self.stop_at_once()?;
            if let Some(event) = self.wait().await? {
                return Ok(event);
            }
        }
    }

    /// Journals something; a stage without rollouts can be repeated without a journal.
    fn record(&mut self, record: &Record) -> Result<(), RunError> {
        if self.replay.is_over() && matches!(self.parts.source, Source::Rollouts(_)) {
            self.journal.append(record)?;
        }
        Ok(())
    }

    fn place_events(&mut self, version: PolicyVersion) {
        self.events.place(&self.parts.outline.name, self.parts.base, version.0);
    }

    fn stop_at_once(&self) -> Result<(), RunError> {
        if self.stop.now() {
            return Err(RunError::StoppedNow { path: self.directory.path().to_owned() });
        }
        Ok(())
    }

    /// An error of a worker, with the place that it leaves the run at.
    fn ended_badly(&self, what: &str) -> RunError {
        RunError::Setup(format!(
            "stage `{}`, step {}: {what}\nlast good checkpoint: {}",
            self.parts.outline.name,
            self.scheduler.version().0 + 1,
            self.last_good()
        ))
    }

    /// What can be resumed from, for messages.
    fn last_good(&self) -> String {
        match &self.saved {
            Some((_, path)) => path.display().to_string(),
            None => "none in this stage; it begins again from its input".to_owned(),
        }
    }

    fn group_ended(&mut self, ticket: u64, end: &str, reason: Option<String>) {
        let event = Event::GroupEnded { ticket, end: end.to_owned(), reason };
        self.events.emit(event);
    }
}

fn end_name(end: End) -> &'static str {
    match end {
        End::Trained => "trained",
        End::Filtered => "filtered",
        End::Stale => "stale",
        End::Failed => "failed",
        End::Surplus => "surplus",
    }
}
