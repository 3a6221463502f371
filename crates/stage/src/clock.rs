//! Timing of the current step.

use std::time::{Duration, Instant};

use rloom_core::PolicyVersion;
use rloom_engine::RolloutStatistics;
use rloom_sched::Counts;
use rloom_telemetry::{Activity, Lane};

use crate::reporter::Reporter;

/// Times of one step.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepTimes {
    /// Time in which groups were in flight.
    pub(crate) rollout: Duration,
    /// Time in which no group was in flight.
    pub(crate) wait_for_policy: Duration,
    /// Time in which the trainer was idle.
    pub(crate) wait_for_batch: Duration,
    /// Time in which groups were in flight and the trainer worked.
    pub(crate) overlap: Duration,
    /// Time spent in rewards, summed over episodes.
    pub(crate) reward: Duration,
    /// Time spent writing checkpoints.
    pub(crate) checkpoint: Duration,
    /// Time spent publishing weights.
    pub(crate) publish: Duration,
    /// Time spent in the scheduler.
    pub(crate) scheduler: Duration,
    /// Policy tokens of the episodes that were scored.
    pub(crate) sampled_tokens: usize,
    /// Groups ready and running when the batch was cut.
    pub(crate) queue: Counts,
}

/// Measures how long rollout and trainer work, wait and overlap in each step.
#[derive(Debug)]
pub(crate) struct StepClock {
    /// True while groups are in flight, and since when that has not changed.
    rollouts: (bool, Instant),
    /// Start of the trainer's idle time; `None` while it works.
    trainer_idle: Option<Instant>,
    /// End of the time that the step's times account for.
    counted: Instant,
    times: StepTimes,
    /// Statistics of the rollout engine at the start of the step.
    engine: RolloutStatistics,
}

impl Default for StepClock {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            rollouts: (false, now),
            trainer_idle: Some(now),
            counted: now,
            times: StepTimes::default(),
            engine: RolloutStatistics::default(),
        }
    }
}

impl StepClock {
    /// Restarts the clock with the current statistics of the engine.
    pub(crate) fn restart(&mut self, engine: RolloutStatistics) {
        let times = std::mem::take(&mut self.times);
        // A replayed journal may end while a batch is being trained.
        let trainer_idle = self.trainer_idle.map(|_| Instant::now());
        *self = Self { trainer_idle, times, engine, ..Self::default() };
    }

    /// Counts a scored episode.
    pub(crate) fn scored(&mut self, tokens: usize, reward: Duration) {
        self.times.reward += reward;
        self.times.sampled_tokens += tokens;
    }

    /// Notes the queue at the cut of a batch.
    pub(crate) fn cut(&mut self, counts: Counts) {
        self.times.queue = counts;
    }

    /// Counts time spent in the scheduler.
    pub(crate) fn scheduled(&mut self, time: Duration) {
        self.times.scheduler += time;
    }

    /// Counts time spent publishing weights.
    pub(crate) fn published(&mut self, time: Duration) {
        self.times.publish += time;
    }

    /// Counts time spent writing a checkpoint.
    pub(crate) fn saved(&mut self, time: Duration) {
        self.times.checkpoint += time;
    }

    /// Notes that the trainer is idle.
    pub(crate) fn trainer_idle(&mut self) {
        self.count();
        self.trainer_idle.get_or_insert_with(Instant::now);
    }

    /// Notes that the trainer works, and reports how long it was idle.
    pub(crate) fn trainer_busy(&mut self, reporter: &mut Reporter<'_, '_>, version: PolicyVersion) {
        self.count();
        if let Some(since) = self.trainer_idle.take() {
            reporter.activity(Lane::Train, Activity::WaitForBatch, (since, Instant::now()), version.0, None);
        }
    }

    /// Notes if groups are in flight, and reports the interval that a change ends.
    pub(crate) fn rollouts(&mut self, busy: bool, reporter: &mut Reporter<'_, '_>, version: PolicyVersion) {
        if busy == self.rollouts.0 {
            return;
        }
        self.count();
        let now = Instant::now();
        let (was_busy, since) = std::mem::replace(&mut self.rollouts, (busy, now));
        let activity = if was_busy { Activity::Generate } else { Activity::WaitForPolicy };
        reporter.activity(Lane::Rollout, activity, (since, now), version.0, None);
    }

    /// Attributes the time since the last call.
    fn count(&mut self) {
        let now = Instant::now();
        let time = now - std::mem::replace(&mut self.counted, now);
        let (rollouts, trainer) = (self.rollouts.0, self.trainer_idle.is_none());
        *(if rollouts { &mut self.times.rollout } else { &mut self.times.wait_for_policy }) += time;
        if !trainer {
            self.times.wait_for_batch += time;
        } else if rollouts {
            self.times.overlap += time;
        }
    }

    /// Ends the step. Returns its times and the engine's statistics at its start; `engine` are those at its end.
    pub(crate) fn end_step(&mut self, engine: RolloutStatistics) -> (StepTimes, RolloutStatistics) {
        self.count();
        (std::mem::take(&mut self.times), std::mem::replace(&mut self.engine, engine))
    }
}
