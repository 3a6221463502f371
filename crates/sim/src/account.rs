//! What is counted while virtual time passes.

use serde::{Deserialize, Serialize};

use super::replica::DOINGS;

/// What the trainer is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Wait = 0,
    Train = 1,
    Publish = 2,
    Evaluate = 3,
    Checkpoint = 4,
}

/// How many there are.
pub(crate) const LANES: usize = 5;

/// How groups ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ends {
    /// In a batch that was trained.
    pub trained: u64,
    /// Taken out before training.
    pub filtered: u64,
    /// Too old to be trained on.
    pub stale: u64,
    /// Could not be generated or scored.
    pub failed: u64,
    /// Alive when the stage ended.
    pub surplus: u64,
}

impl Ends {
    /// All of them.
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

/// A number that changes at events: its integral over time and its largest value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Level {
    pub(crate) now: f64,
    integral: f64,
    most: f64,
}

impl Level {
    pub(crate) fn set(&mut self, value: f64) {
        self.now = value;
    }

    fn pass(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.integral += self.now * seconds;
            self.most = self.most.max(self.now);
        }
    }
}

/// Sums from the beginning.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) seconds: f64,
    pub(crate) version: u64,
    pub(crate) events: u64,
    /// Replica-seconds by what the replicas were doing.
    pub(crate) doing: [f64; DOINGS],
    pub(crate) prefill: f64,
    /// Seconds by what the trainer was doing.
    pub(crate) lanes: [f64; LANES],
    /// Tokens generated, and those of them that were never trained on.
    pub(crate) generated: f64,
    pub(crate) wasted: f64,
    /// Generated tokens that were trained on, and all tokens of the batches.
    pub(crate) learned: f64,
    pub(crate) trained: f64,
    pub(crate) ends: Ends,
    pub(crate) started: u64,
    pub(crate) put_off: u64,
    pub(crate) replica_failures: u64,
    /// Samples that left the queue, and the seconds that they spent there.
    pub(crate) admitted: u64,
    pub(crate) wait_seconds: f64,
    pub(crate) waiting: Level,
    pub(crate) running: Level,
    pub(crate) away: Level,
    pub(crate) ready: Level,
    /// Trained groups, and their generated tokens, by age in versions.
    pub(crate) group_ages: Vec<f64>,
    pub(crate) token_ages: Vec<f64>,
}

/// What a batch will add to the sums.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) groups: u64,
    pub(crate) learned: f64,
    pub(crate) tokens: f64,
    pub(crate) group_ages: Vec<f64>,
    pub(crate) token_ages: Vec<f64>,
}

impl Totals {
    /// A batch is trained and published.
    pub(crate) fn book(&mut self, batch: &Batch) {
        self.ends.trained += batch.groups;
        self.learned += batch.learned;
        self.trained += batch.tokens;
        for (age, &groups) in batch.group_ages.iter().enumerate() {
            add(&mut self.group_ages, age as u64, groups);
        }
        for (age, &tokens) in batch.token_ages.iter().enumerate() {
            add(&mut self.token_ages, age as u64, tokens);
        }
    }

    /// Time passes in which nothing changes.
    pub(crate) fn pass(&mut self, seconds: f64, doing: &[u32; DOINGS], lane: Lane) {
        self.seconds += seconds;
        for (sum, &count) in self.doing.iter_mut().zip(doing) {
            *sum += f64::from(count) * seconds;
        }
        self.lanes[lane as usize] += seconds;
        for level in [&mut self.waiting, &mut self.running, &mut self.away, &mut self.ready] {
            level.pass(seconds);
        }
    }

    /// What happened after `earlier`. The largest levels are those of the whole time.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let array = |now: [f64; DOINGS], then: [f64; DOINGS]| std::array::from_fn(|i| now[i] - then[i]);
        let ages = |now: &[f64], then: &[f64]| {
            now.iter().enumerate().map(|(i, n)| n - then.get(i).unwrap_or(&0.0)).collect()
        };
        let level = |now: Level, then: Level| Level { integral: now.integral - then.integral, ..now };
        Self {
            seconds: self.seconds - earlier.seconds,
            version: self.version - earlier.version,
            events: self.events - earlier.events,
            doing: array(self.doing, earlier.doing),
            prefill: self.prefill - earlier.prefill,
            lanes: array(self.lanes, earlier.lanes),
            generated: self.generated - earlier.generated,
            wasted: self.wasted - earlier.wasted,
            learned: self.learned - earlier.learned,
            trained: self.trained - earlier.trained,
            ends: self.ends.since(&earlier.ends),
            started: self.started - earlier.started,
            put_off: self.put_off - earlier.put_off,
            replica_failures: self.replica_failures - earlier.replica_failures,
            admitted: self.admitted - earlier.admitted,
            wait_seconds: self.wait_seconds - earlier.wait_seconds,
            waiting: level(self.waiting, earlier.waiting),
            running: level(self.running, earlier.running),
            away: level(self.away, earlier.away),
            ready: level(self.ready, earlier.ready),
            group_ages: ages(&self.group_ages, &earlier.group_ages),
            token_ages: ages(&self.token_ages, &earlier.token_ages),
        }
    }

    /// Mean and largest value of a level.
    pub(crate) fn of(&self, level: &Level) -> (f64, f64) {
        (if self.seconds > 0.0 { level.integral / self.seconds } else { 0.0 }, level.most)
    }
}

/// Adds to a histogram that grows as far as it must.
pub(crate) fn add(histogram: &mut Vec<f64>, place: u64, amount: f64) {
    let place = place as usize;
    if histogram.len() <= place {
        histogram.resize(place + 1, 0.0);
    }
    histogram[place] += amount;
}
