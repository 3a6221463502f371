//! A replica: processor sharing with a clock that counts the tokens of one sequence.
//!
//! All sequences of a replica advance at the same rate, so a single clock measures their progress in tokens. A sequence that
//! starts at clock `s` with `n` tokens to generate ends at clock `s + n`, no matter which sequences join or leave meanwhile;
//! only the corresponding time in seconds changes. A start, an end and a change of rate therefore cost O(log n).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::active_workload::Sample;
use super::event_queue::Time;
use super::version_history::VersionHistory;

/// Activity of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaActivity {
    Generate = 0,
    Load = 1,
    /// Paused while its devices train.
    Shared = 2,
    Down = 3,
    Idle = 4,
}

/// Number of variants of [`ReplicaActivity`].
pub(crate) const REPLICA_ACTIVITIES: usize = 5;

/// A running sequence, ordered by its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunningSequence {
    finish: Time,
    pub(crate) sample: u32,
    stamp: u32,
    start: Time,
}

/// Progress of a replica's weight update.
#[derive(Debug, Default)]
pub(crate) struct WeightUpdate {
    pub(crate) loading: bool,
    /// Accepts no sequences because new weights wait for the running ones.
    pub(crate) draining: bool,
    /// Version being loaded or waiting to be loaded.
    pub(crate) pending: u64,
    /// Number of loads started; identifies the current one.
    pub(crate) loads: u32,
}

#[derive(Debug)]
pub(crate) struct Replica {
    /// Units of work that a sequence running from the start would have done: tokens, or seconds of service.
    pub(crate) clock: f64,
    /// Time at which the clock was last advanced.
    read_at: f64,
    /// Seconds of prefill before decoding continues.
    prefill_left: f64,
    pub(crate) running: u32,
    heap: BinaryHeap<Reverse<RunningSequence>>,
    pub(crate) paused: bool,
    pub(crate) down: bool,
    pub(crate) update: WeightUpdate,
    pub(crate) history: VersionHistory,
    /// Sum over running sequences of the context at their start minus the clock at that time. Has a meaning only where the
    /// clock counts tokens; otherwise prefill is part of the service time.
    contexts: f64,
}

impl Replica {
    /// A replica with the initial weights of the stage.
    pub(crate) fn new() -> Self {
        Self {
            clock: 0.0,
            read_at: 0.0,
            prefill_left: 0.0,
            running: 0,
            heap: BinaryHeap::new(),
            paused: false,
            down: false,
            update: WeightUpdate::default(),
            history: VersionHistory::new(),
            contexts: 0.0,
        }
    }

    pub(crate) fn activity(&self) -> ReplicaActivity {
        if self.down {
            ReplicaActivity::Down
        } else if self.paused {
            ReplicaActivity::Shared
        } else if self.update.loading {
            ReplicaActivity::Load
        } else if self.running > 0 {
            ReplicaActivity::Generate
        } else {
            ReplicaActivity::Idle
        }
    }

    /// True if it can start another sequence.
    pub(crate) fn accepts_work(&self, max_concurrency: u32) -> bool {
        !self.down && !self.update.draining && self.running < max_concurrency
    }

    fn is_blocked(&self) -> bool {
        self.down || self.paused || self.update.loading
    }

    /// Advances the clock to `now` and returns the seconds spent on prefill.
    pub(crate) fn advance(&mut self, now: f64, rates: &[f64]) -> f64 {
        let elapsed = now - self.read_at;
        self.read_at = now;
        if self.is_blocked() {
            return 0.0;
        }
        let prefill = self.prefill_left.min(elapsed);
        self.prefill_left -= prefill;
        if self.running > 0 {
            self.clock += (elapsed - prefill) * rates[self.running as usize];
        }
        prefill
    }

    /// Time at which its next sequence ends. Call after [`Replica::advance`].
    pub(crate) fn next_end(&mut self, rates: &[f64], samples: &[Sample]) -> f64 {
        while self.heap.peek().is_some_and(|top| is_outdated(&top.0, samples)) {
            self.heap.pop();
        }
        match self.heap.peek() {
            Some(Reverse(top)) if !self.is_blocked() => {
                let tokens = (top.finish.0 - self.clock).max(0.0);
                self.read_at + self.prefill_left + tokens / rates[self.running as usize]
            }
            _ => f64::INFINITY,
        }
    }

    /// Removes the sequence scheduled to end now and sets the clock to its end, so that no rounding error remains.
    pub(crate) fn take_ended(&mut self, samples: &[Sample]) -> Option<u32> {
        while let Some(Reverse(top)) = self.heap.pop() {
            if !is_outdated(&top, samples) {
                self.clock = self.clock.max(top.finish.0);
                return Some(top.sample);
            }
        }
        None
    }

    /// Removes another sequence that ends at the same clock.
    pub(crate) fn take_also_ended(&mut self, samples: &[Sample]) -> Option<u32> {
        let ended = self.heap.peek().is_some_and(|top| top.0.finish.0 <= self.clock + 1e-9);
        if ended { self.take_ended(samples) } else { None }
    }

    /// Starts a sequence; `prefill` in seconds.
    pub(crate) fn start(&mut self, id: u32, sample: &mut Sample, prefill: f64) {
        if self.running == 0 {
            self.history.keep_current();
        }
        self.prefill_left += prefill;
        self.running += 1;
        self.contexts += sample.context - self.clock;
        sample.start = self.clock;
        self.heap.push(Reverse(RunningSequence {
            finish: Time(self.clock + sample.left * sample.pace),
            sample: id,
            stamp: sample.stamp,
            start: Time(self.clock),
        }));
    }

    /// Accounts for a sequence that ended or was cancelled. The caller must change its stamp.
    pub(crate) fn remove(&mut self, sample: &Sample) {
        self.running -= 1;
        self.contexts -= sample.context - sample.start;
        if self.running == 0 {
            self.contexts = 0.0;
            self.prefill_left = 0.0;
        }
    }

    /// Removes all running sequences from the heap and returns them by sample number.
    pub(crate) fn drain_running(&mut self, samples: &[Sample]) -> Vec<u32> {
        let mut ids: Vec<u32> = self
            .heap
            .drain()
            .filter(|running| !is_outdated(&running.0, samples))
            .map(|running| running.0.sample)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Total context tokens of all its sequences.
    pub(crate) fn context_tokens(&self) -> f64 {
        (self.contexts + f64::from(self.running) * self.clock).max(0.0)
    }

    /// Switches to the pending weights. `reread` is the time to prefill the contexts again, in seconds.
    pub(crate) fn loaded(&mut self, reread: f64) {
        self.update.loading = false;
        self.update.draining = false;
        self.prefill_left += reread;
        self.history.push(self.clock, self.update.pending);
        if self.running > 0 && self.history.is_long() {
            let first = self.heap.iter().map(|r| r.0.start.0).fold(self.clock, f64::min);
            self.history.prune(first);
        }
    }
}

/// True if the sequence has left the replica since.
fn is_outdated(running: &RunningSequence, samples: &[Sample]) -> bool {
    samples[running.sample as usize].stamp != running.stamp
}
