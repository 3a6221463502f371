//! What goes on: times of the step under way, progress, and what is said when nothing goes on any more.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rloom_rollout::Statistics;
use rloom_sched::Counts;
use tokio::task::JoinError;

use super::evaluating::{Evaluated, Evaluation};
use super::groups::GroupEvent;
use super::publishing::Change;
use super::{Source, Stage, TICK, Told};
use crate::RunError;
use crate::events::{Activity, Event, Lane, Phase};
use crate::trainer::Done;

/// Clocks of a stage.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When anything was last heard of anybody.
    heard: Instant,
    /// Signs of work that nobody tells of: tokens, optimiser steps, held-out completions.
    signs: u64,
    /// Since when groups have been under way without a pause, or none has been.
    rollouts: (bool, Instant),
    /// Since when the trainer has had nothing to do.
    trainer_idle: Option<Instant>,
    /// When progress is looked at next.
    next_tick: tokio::time::Instant,
    /// Up to when the step's times are counted.
    counted: Instant,
    pub(crate) step: StepClock,
    /// What the engine had done when the step began.
    pub(crate) engine: Statistics,
}

/// Times of the step under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepClock {
    /// In which groups were under way.
    pub(crate) rollout: Duration,
    /// In which none was.
    pub(crate) wait_for_policy: Duration,
    /// In which the trainer had nothing to do.
    pub(crate) wait_for_batch: Duration,
    /// In which groups were under way and the trainer worked.
    pub(crate) overlap: Duration,
    pub(crate) reward: Duration,
    pub(crate) checkpoint: Duration,
    pub(crate) publish: Duration,
    /// In which the scheduler decided.
    pub(crate) scheduler: Duration,
    pub(crate) sampled_tokens: usize,
    /// Groups ready and running when the batch was cut.
    pub(crate) queue: Counts,
}

impl Default for Watch {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            heard: now,
            signs: 0,
            rollouts: (false, now),
            trainer_idle: Some(now),
            next_tick: tokio::time::Instant::from_std(now) + TICK,
            counted: now,
            step: StepClock::default(),
            engine: Statistics::default(),
        }
    }
}

impl Watch {
    /// Something was heard of somebody.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Everything begins now, with an engine that has done this much.
    pub(super) fn begin(&mut self, engine: Statistics) {
        let step = std::mem::take(&mut self.step);
        // A history that was replayed may end in a batch that is being trained.
        let trainer_idle = self.trainer_idle.map(|_| Instant::now());
        *self = Self { trainer_idle, step, engine, ..Self::default() };
    }

    pub(super) fn scored(&mut self, tokens: usize, reward: Duration) {
        self.step.reward += reward;
        self.step.sampled_tokens += tokens;
    }

    pub(super) fn cut(&mut self, counts: Counts) {
        self.step.queue = counts;
    }

    pub(super) fn decided(&mut self, time: Duration) {
        self.step.scheduler += time;
    }

    pub(super) fn published(&mut self, time: Duration) {
        self.step.publish += time;
    }

    pub(super) fn saved(&mut self, time: Duration) {
        self.step.checkpoint += time;
    }

    pub(super) fn trainer_idle(&mut self) {
        self.count();
        self.trainer_idle.get_or_insert_with(Instant::now);
    }

    /// Counts the time since the last change to what went on in it.
    fn count(&mut self) {
        let now = Instant::now();
        let time = now - std::mem::replace(&mut self.counted, now);
        let (rollouts, trainer) = (self.rollouts.0, self.trainer_idle.is_none());
        *(if rollouts { &mut self.step.rollout } else { &mut self.step.wait_for_policy }) += time;
        if !trainer {
            self.step.wait_for_batch += time;
        } else if rollouts {
            self.step.overlap += time;
        }
    }

    /// The times of the step that ends here; those of the next begin.
    pub(crate) fn end_step(&mut self) -> StepClock {
        self.count();
        std::mem::take(&mut self.step)
    }
}

/// What wakes the driver.
enum Woken {
    Groups(GroupEvent),
    Trainer(Option<Done>),
    Evaluated(Evaluated),
    Loaded(Result<Change, JoinError>),
    Tick,
}

impl Stage<'_, '_> {
    /// Waits until something happens, no longer than the deadline, and takes it in.
    pub(super) async fn wait(&mut self) -> Result<Option<Told>, RunError> {
        let trainer = async {
            match &mut self.trainer {
                Some(trainer) => trainer.done().await,
                None => None,
            }
        };
        let tick = tokio::time::sleep_until(self.watch.next_tick);
        let woken = tokio::select! {
            biased;
            // First, so that many small things do not keep it from being looked at.
            () = tick => Woken::Tick,
            done = trainer => Woken::Trainer(done),
            evaluated = Evaluation::done(&mut self.evaluation) => Woken::Evaluated(evaluated),
            Some(change) = self.publisher.changing.join_next() => Woken::Loaded(change),
            event = self.groups.next() => Woken::Groups(event),
        };
        match woken {
            Woken::Groups(event) => {
                let happened = self.group_event(event)?;
                if happened.is_some() {
                    self.watch_rollouts();
                    self.load_pinned().await?;
                    self.begin_evaluation();
                }
                Ok(happened)
            }
            Woken::Trainer(done) => {
                let happened = self.trainer_event(done).await?;
                self.begin_evaluation();
                Ok(happened)
            }
            Woken::Evaluated(result) => {
                let happened = self.evaluated(result)?;
                if self.replay.is_over() {
                    self.load_pinned().await?;
                }
                Ok(happened)
            }
            Woken::Loaded(change) => {
                let (version, start, changed) = change
                    .map_err(|error| self.ended_badly(&format!("new weights were not taken: {error}")))?;
                self.loaded(version, start, changed)?;
                Ok(None)
            }
            Woken::Tick => {
                self.watch.next_tick = tokio::time::Instant::now() + TICK;
                self.tick()?;
                Ok(None)
            }
        }
    }

    fn tick(&mut self) -> Result<(), RunError> {
        self.stop_at_once()?;
        self.rollout_progress();
        self.training_progress();
        self.evaluation_progress();
        self.look_for_stall(Self::who_waits)
    }

    /// Ends the run when nothing has happened for too long; `who` says who waits for whom.
    pub(super) fn look_for_stall(&mut self, who: fn(&Self) -> String) -> Result<(), RunError> {
        let signs = self.signs();
        if signs != self.watch.signs {
            self.watch.signs = signs;
            self.watch.heard();
        }
        if self.watch.heard.elapsed() > self.parts.stall {
            let waits = who(self);
            return Err(self.stalled(&waits));
        }
        Ok(())
    }

    /// What the engine has done; nothing where there is none.
    pub(crate) fn engine_statistics(&self) -> Statistics {
        self.parts.engine.as_ref().map(|engine| engine.statistics()).unwrap_or_default()
    }

    /// Grows while anybody works.
    fn signs(&self) -> u64 {
        let tokens = self.engine_statistics().computed_tokens;
        let trained = self.trainer.as_ref().map_or(0, |t| t.progress().0);
        let judged = self.parts.evaluator.as_ref().map_or(0, |e| e.counters.scored.load(Ordering::Relaxed));
        tokens.wrapping_add(trained).wrapping_add(judged)
    }

    fn who_waits(&self) -> String {
        let counts = self.scheduler.counts();
        if counts.in_batch > 0 {
            let (done, total) = self.trainer.as_ref().map_or((0, 0), crate::trainer::Trainer::progress);
            return format!(
                "the driver waits for the trainer: {done} of {total} optimiser steps of the batch"
            );
        }
        if self.saving.is_some() {
            return "the driver waits for the trainer to write a checkpoint".to_owned();
        }
        if self.evaluation.is_some() {
            let progress = self
                .parts
                .evaluator
                .as_ref()
                .map_or((0, 0), |e| (e.counters.scored.load(Ordering::Relaxed), e.completions()));
            return format!(
                "the driver waits for the evaluation: {} of {} completions",
                progress.0, progress.1
            );
        }
        format!(
            "the trainer waits for a batch of {} groups: {} ready, {} under way",
            self.parts.groups_per_batch, counts.ready, counts.running
        )
    }

    /// Who waits for whom, since when, and what each worker last did.
    pub(super) fn stalled(&self, waits: &str) -> RunError {
        let mut report = waits.to_owned();
        if let Some((ticket, group)) = self.groups.under_way.iter().next() {
            let _ = write!(report, "\n  oldest group: {}", ticket.0);
            if let Some(started) = group.started {
                let _ = write!(report, ", for {:.1} s", started.elapsed().as_secs_f64());
            }
            let done: Vec<String> = group.episodes.keys().map(ToString::to_string).collect();
            let done = if done.is_empty() { "none".to_owned() } else { done.join(", ") };
            let _ = write!(report, ", samples done: {done}");
            if let Source::Rollouts(source) = &self.parts.source {
                for (key, waits) in source.attempts.who_waits(SHOWN_WAITS, |key| key.ticket == *ticket) {
                    let _ = write!(report, "\n    sample {} {waits}", key.sample);
                }
            }
        }
        if let (Some(_), Some(evaluator)) = (&self.evaluation, &self.parts.evaluator) {
            for (key, waits) in evaluator.attempts.who_waits(SHOWN_WAITS, |_| true) {
                let _ = write!(report, "\n  held-out task {} {waits}", key.ticket.0);
            }
        }
        if let Some(engine) = &self.parts.engine {
            for lane in engine.lanes() {
                let _ = write!(report, "\n  {lane}");
            }
        }
        RunError::Stalled {
            stage: self.parts.outline.name.clone(),
            step: self.scheduler.version().0 + 1,
            report,
            seconds: self.watch.heard.elapsed().as_secs(),
            checkpoint: self.last_good(),
        }
    }

    /// Episodes of the groups that are alive or were replaced since the last batch: made, and judged.
    fn rollout_progress(&mut self) {
        let Source::Rollouts(source) = &self.parts.source else { return };
        let each = u64::from(source.episodes_per_group());
        let complete = self.groups.ready.len() as u64 + self.drawn.filtered.values().sum::<u64>();
        let begun = self.groups.under_way.values().map(|group| group.episodes.len() as u64).sum::<u64>();
        let total = (complete + self.groups.under_way.len() as u64) * each;
        if total == 0 {
            return;
        }
        let scored = complete * each + begun;
        let generated = scored + source.counters.judging.load(Ordering::Relaxed);
        self.events.emit(Event::Progress { phase: Phase::Rollout, done: generated.min(total), total });
        self.events.emit(Event::Progress { phase: Phase::Reward, done: scored.min(total), total });
    }

    fn training_progress(&mut self) {
        if self.scheduler.counts().in_batch == 0 {
            return;
        }
        if let Some((done, total)) = self.trainer.as_ref().map(crate::trainer::Trainer::progress)
            && total > 0
        {
            self.events.emit(Event::Progress { phase: Phase::Train, done, total });
        }
    }

    /// Notes whether groups are under way.
    pub(super) fn watch_rollouts(&mut self) {
        let busy = self.groups.at_work() > 0;
        if busy == self.watch.rollouts.0 {
            return;
        }
        self.watch.count();
        let now = Instant::now();
        let (was_busy, since) = std::mem::replace(&mut self.watch.rollouts, (busy, now));
        let activity = if was_busy { Activity::Generate } else { Activity::WaitForPolicy };
        let version = self.scheduler.version().0;
        self.activity(Lane::Rollout, activity, since, now, version, None);
    }

    /// The trainer has something to do again.
    pub(super) fn waited_for_batch(&mut self) {
        self.watch.count();
        let Some(since) = self.watch.trainer_idle.take() else { return };
        let version = self.scheduler.version().0;
        self.activity(Lane::Train, Activity::WaitForBatch, since, Instant::now(), version, None);
    }

    /// Tells of a lane's time, unless it was too short to be seen.
    pub(super) fn activity(
        &mut self,
        lane: Lane,
        activity: Activity,
        start: Instant,
        end: Instant,
        version: u64,
        ticket: Option<u64>,
    ) {
        if lane == Lane::Rollout && matches!(self.parts.source, Source::Demonstrations(_)) {
            return;
        }
        let (start, end) = (self.events.at(start), self.events.at(end));
        if end - start >= SHORTEST || activity == Activity::Group {
            self.events.emit(Event::Activity { lane, activity, start, end, version, ticket });
        }
    }
}

/// Waits that the report of a stall names, the longest ones.
const SHOWN_WAITS: usize = 4;

/// Shorter intervals are not told of, but those of groups, whose lineage they are (seconds).
const SHORTEST: f64 = 1e-4;
