//! A replica: processor sharing with a clock that counts the tokens of one sequence.
//!
//! All sequences of a replica advance at the same rate, so a single clock measures their progress in tokens. A sequence that
//! starts at clock `s` with `n` tokens to generate ends at clock `s + n`, no matter which sequences join or leave meanwhile;
//! only the corresponding time in seconds changes. A start, an end and a change of rate therefore cost O(log n).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::active_workload::Sample;
use super::event_queue::Time;

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

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent reasons to be blocked, in any combination")]
pub(crate) struct Replica {
    /// Tokens that a sequence running from the start would have generated.
    pub(crate) clock: f64,
    /// Time at which the clock was last advanced.
    read_at: f64,
    /// Seconds of prefill before decoding continues.
    prefill_left: f64,
    pub(crate) running: u32,
    heap: BinaryHeap<Reverse<RunningSequence>>,
    pub(crate) paused: bool,
    pub(crate) loading: bool,
    pub(crate) down: bool,
    /// Accepts no sequences because new weights wait for the running ones.
    pub(crate) draining: bool,
    pub(crate) version: u64,
    /// Version being loaded or waiting to be loaded.
    pub(crate) pending: u64,
    pub(crate) load_stamp: u32,
    /// Versions with the clock from which they generate.
    history: VecDeque<(f64, u64)>,
    prune_at: usize,
    /// Sum over running sequences of the context at their start minus the clock at that time.
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
            loading: false,
            down: false,
            draining: false,
            version: 0,
            pending: 0,
            load_stamp: 0,
            history: VecDeque::from([(0.0, 0)]),
            prune_at: 0,
            contexts: 0.0,
        }
    }

    pub(crate) fn activity(&self) -> ReplicaActivity {
        if self.down {
            ReplicaActivity::Down
        } else if self.paused {
            ReplicaActivity::Shared
        } else if self.loading {
            ReplicaActivity::Load
        } else if self.running > 0 {
            ReplicaActivity::Generate
        } else {
            ReplicaActivity::Idle
        }
    }

    /// True if it can start another sequence.
    pub(crate) fn accepts_work(&self, max_concurrency: u32) -> bool {
        !self.down && !self.draining && self.running < max_concurrency
    }

    fn is_blocked(&self) -> bool {
        self.down || self.paused || self.loading
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
        if self.running == 0 && self.history.len() > 1 {
            self.history.drain(..self.history.len() - 1);
        }
        self.prefill_left += prefill;
        self.running += 1;
        self.contexts += sample.context - self.clock;
        sample.start = self.clock;
        self.heap.push(Reverse(RunningSequence {
            finish: Time(self.clock + sample.left),
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
        self.version = self.pending;
        self.loading = false;
        self.draining = false;
        self.prefill_left += reread;
        if self.history.back().is_some_and(|last| last.0 >= self.clock) {
            // Nothing was generated with that version.
            self.history.pop_back();
        }
        self.history.push_back((self.clock, self.version));
        if self.running > 0 && self.history.len() > self.prune_at.max(8) {
            self.prune();
        }
    }

    /// Drops versions that ended before any running sequence started.
    fn prune(&mut self) {
        let first = self.heap.iter().map(|r| r.0.start.0).fold(self.clock, f64::min);
        while self.history.get(1).is_some_and(|next| next.0 <= first) {
            self.history.pop_front();
        }
        self.prune_at = 2 * self.history.len();
    }

    /// Passes the number of tokens generated with each version between clocks `start` and `end` to `record`.
    pub(crate) fn tokens_by_version(&self, start: f64, end: f64, mut record: impl FnMut(u64, f64)) {
        let mut until = end;
        for &(from, version) in self.history.iter().rev() {
            let begin = from.max(start);
            if until > begin {
                record(version, until - begin);
                until = begin;
            }
            if from <= start {
                return;
            }
        }
    }
}

/// True if the sequence has left the replica since.
fn is_outdated(running: &RunningSequence, samples: &[Sample]) -> bool {
    samples[running.sample as usize].stamp != running.stamp
}
