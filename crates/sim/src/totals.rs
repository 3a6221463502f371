//! Statistics accumulated over virtual time.

use serde::{Deserialize, Serialize};

use super::replica::REPLICA_ACTIVITIES;

/// Activity of the trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrainerActivity {
    Idle = 0,
    Train = 1,
    Publish = 2,
    Evaluate = 3,
    Checkpoint = 4,
}

/// Number of variants of [`TrainerActivity`].
pub(crate) const TRAINER_ACTIVITIES: usize = 5;

/// Number of groups by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ends {
    /// In a batch that was trained.
    pub trained: u64,
    /// Filtered out before training.
    pub filtered: u64,
    /// Too old to be trained on.
    pub stale: u64,
    /// Could not be generated or scored.
    pub failed: u64,
    /// Still open when the last batch was cut.
    pub surplus: u64,
}

impl Ends {
    /// Number of groups with any outcome.
    pub fn total(&self) -> u64 {
        self.trained + self.filtered + self.stale + self.failed + self.surplus
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            trained: self.trained - earlier.trained,
            filtered: self.filtered - earlier.filtered,
            stale: self.stale - earlier.stale,
            failed: self.failed - earlier.failed,
            surplus: self.surplus - earlier.surplus,
        }
    }
}

/// A value that changes at events, with its integral over time and its maximum.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauge {
    pub(crate) current: f64,
    integral: f64,
    max: f64,
}

impl Gauge {
    pub(crate) fn set(&mut self, value: f64) {
        self.current = value;
    }

    fn advance(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.integral += self.current * seconds;
            self.max = self.max.max(self.current);
        }
    }
}

/// Sums since the start of the simulation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) seconds: f64,
    pub(crate) version: u64,
    pub(crate) events: u64,
    /// Replica-seconds by activity of the replicas.
    pub(crate) replica_seconds: [f64; REPLICA_ACTIVITIES],
    pub(crate) prefill: f64,
    /// Seconds by activity of the trainer.
    pub(crate) trainer_seconds: [f64; TRAINER_ACTIVITIES],
    /// Tokens generated.
    pub(crate) generated: f64,
    /// Generated tokens that are never trained on.
    pub(crate) wasted: f64,
    /// Generated tokens that were trained on.
    pub(crate) useful: f64,
    /// Tokens of the trained batches, including prompts and observations.
    pub(crate) trained: f64,
    pub(crate) ends: Ends,
    pub(crate) started: u64,
    pub(crate) deferred: u64,
    pub(crate) replica_failures: u64,
    /// Samples that left the queue.
    pub(crate) admitted: u64,
    /// Seconds that these spent in the queue.
    pub(crate) wait_seconds: f64,
    pub(crate) waiting: Gauge,
    pub(crate) running: Gauge,
    pub(crate) external: Gauge,
    pub(crate) ready: Gauge,
    /// Trained groups by age in versions.
    pub(crate) group_ages: Vec<f64>,
    /// Their generated tokens by age in versions.
    pub(crate) token_ages: Vec<f64>,
}

/// Contribution of a batch to the totals.
#[derive(Debug, Default)]
pub(crate) struct BatchTotals {
    pub(crate) groups: u64,
    pub(crate) useful: f64,
    pub(crate) tokens: f64,
    pub(crate) group_ages: Vec<f64>,
    pub(crate) token_ages: Vec<f64>,
}

impl Totals {
    /// Adds a batch that was trained and published.
    pub(crate) fn record_batch(&mut self, batch: &BatchTotals) {
        self.ends.trained += batch.groups;
        self.useful += batch.useful;
        self.trained += batch.tokens;
        for (age, &groups) in batch.group_ages.iter().enumerate() {
            add(&mut self.group_ages, age as u64, groups);
        }
        for (age, &tokens) in batch.token_ages.iter().enumerate() {
            add(&mut self.token_ages, age as u64, tokens);
        }
    }

    /// Advances time by an interval in which no state changes.
    pub(crate) fn advance(
        &mut self,
        seconds: f64,
        replicas: &[u32; REPLICA_ACTIVITIES],
        trainer: TrainerActivity,
    ) {
        self.seconds += seconds;
        for (sum, &count) in self.replica_seconds.iter_mut().zip(replicas) {
            *sum += f64::from(count) * seconds;
        }
        self.trainer_seconds[trainer as usize] += seconds;
        for gauge in [&mut self.waiting, &mut self.running, &mut self.external, &mut self.ready] {
            gauge.advance(seconds);
        }
    }

    /// Difference from an earlier state. The maxima of gauges remain those of the whole simulation.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let array = |now: [f64; REPLICA_ACTIVITIES], then: [f64; REPLICA_ACTIVITIES]| {
            std::array::from_fn(|i| now[i] - then[i])
        };
        let ages = |now: &[f64], then: &[f64]| {
            now.iter().enumerate().map(|(i, n)| n - then.get(i).unwrap_or(&0.0)).collect()
        };
        let gauge = |now: Gauge, then: Gauge| Gauge { integral: now.integral - then.integral, ..now };
        Self {
            seconds: self.seconds - earlier.seconds,
            version: self.version - earlier.version,
            events: self.events - earlier.events,
            replica_seconds: array(self.replica_seconds, earlier.replica_seconds),
            prefill: self.prefill - earlier.prefill,
            trainer_seconds: array(self.trainer_seconds, earlier.trainer_seconds),
            generated: self.generated - earlier.generated,
            wasted: self.wasted - earlier.wasted,
            useful: self.useful - earlier.useful,
            trained: self.trained - earlier.trained,
            ends: self.ends.since(&earlier.ends),
            started: self.started - earlier.started,
            deferred: self.deferred - earlier.deferred,
            replica_failures: self.replica_failures - earlier.replica_failures,
            admitted: self.admitted - earlier.admitted,
            wait_seconds: self.wait_seconds - earlier.wait_seconds,
            waiting: gauge(self.waiting, earlier.waiting),
            running: gauge(self.running, earlier.running),
            external: gauge(self.external, earlier.external),
            ready: gauge(self.ready, earlier.ready),
            group_ages: ages(&self.group_ages, &earlier.group_ages),
            token_ages: ages(&self.token_ages, &earlier.token_ages),
        }
    }

    /// Mean over time and maximum of a gauge.
    pub(crate) fn mean_and_max(&self, gauge: &Gauge) -> (f64, f64) {
        (if self.seconds > 0.0 { gauge.integral / self.seconds } else { 0.0 }, gauge.max)
    }
}

/// Adds to a bin of a histogram, extending it as needed.
pub(crate) fn add(histogram: &mut Vec<f64>, bin: u64, amount: f64) {
    let bin = bin as usize;
    if histogram.len() <= bin {
        histogram.resize(bin + 1, 0.0);
    }
    histogram[bin] += amount;
}
