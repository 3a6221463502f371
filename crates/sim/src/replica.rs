//! One replica: processor sharing by a clock that counts the tokens of one sequence.
//!
//! All sequences of a replica advance at the same rate, so one number says how far they are: the clock. A sequence that
//! starts at clock `s` with `n` tokens to generate ends at clock `s + n`, whoever joins or leaves meanwhile; only when
//! that is in seconds changes. A start, an end and a change of rate therefore cost O(log n).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::agenda::Time;
use super::population::Sample;

/// What a replica is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Generate = 0,
    Load = 1,
    /// Its devices train.
    Shared = 2,
    Down = 3,
    Idle = 4,
}

/// How many there are.
pub(crate) const DOINGS: usize = 5;

/// A sequence in the order of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Running {
    finish: Time,
    pub(crate) sample: u32,
    stamp: u32,
    start: Time,
}

#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent holds: any of them may come and go beside the others"
)]
pub(crate) struct Replica {
    /// Tokens that a sequence has generated that was here from the beginning.
    pub(crate) clock: f64,
    /// When the clock was read.
    read_at: f64,
    /// Seconds of prefill before the clock goes on.
    stall: f64,
    pub(crate) running: u32,
    heap: BinaryHeap<Reverse<Running>>,
    pub(crate) paused: bool,
    pub(crate) loading: bool,
    pub(crate) down: bool,
    /// Starts nothing, because new weights wait for what is running.
    pub(crate) draining: bool,
    pub(crate) version: u64,
    /// The weights that are being loaded, or waited for.
    pub(crate) pending: u64,
    pub(crate) load_stamp: u32,
    /// From which clock on which version generates.
    history: VecDeque<(f64, u64)>,
    prune_at: usize,
    /// Contexts of its sequences when they started, less the clock at that time.
    contexts: f64,
}

impl Replica {
    /// One that has the weights that the stage begins with.
    pub(crate) fn new() -> Self {
        Self {
            clock: 0.0,
            read_at: 0.0,
            stall: 0.0,
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

    pub(crate) fn doing(&self) -> Doing {
        if self.down {
            Doing::Down
        } else if self.paused {
            Doing::Shared
        } else if self.loading {
            Doing::Load
        } else if self.running > 0 {
            Doing::Generate
        } else {
            Doing::Idle
        }
    }

    /// Whether it takes another sequence.
    pub(crate) fn open(&self, max_concurrency: u32) -> bool {
        !self.down && !self.draining && self.running < max_concurrency
    }

    fn held(&self) -> bool {
        self.down || self.paused || self.loading
    }

    /// Brings the clock to `now`; says how many of the seconds went into prefill.
    pub(crate) fn advance(&mut self, now: f64, rates: &[f64]) -> f64 {
        let elapsed = now - self.read_at;
        self.read_at = now;
        if self.held() {
            return 0.0;
        }
        let prefill = self.stall.min(elapsed);
        self.stall -= prefill;
        if self.running > 0 {
            self.clock += (elapsed - prefill) * rates[self.running as usize];
        }
        prefill
    }

    /// When its next sequence ends, after [`Replica::advance`].
    pub(crate) fn next_end(&mut self, rates: &[f64], samples: &[Sample]) -> f64 {
        while self.heap.peek().is_some_and(|top| void(&top.0, samples)) {
            self.heap.pop();
        }
        match self.heap.peek() {
            Some(Reverse(top)) if !self.held() => {
                let tokens = (top.finish.0 - self.clock).max(0.0);
                self.read_at + self.stall + tokens / rates[self.running as usize]
            }
            _ => f64::INFINITY,
        }
    }

    /// Takes the sequence whose end was announced for now: the clock is set to it, so that no rounding is left over.
    pub(crate) fn take_ended(&mut self, samples: &[Sample]) -> Option<u32> {
        while let Some(Reverse(top)) = self.heap.pop() {
            if !void(&top, samples) {
                self.clock = self.clock.max(top.finish.0);
                return Some(top.sample);
            }
        }
        None
    }

    /// The next one that has ended at this clock, too.
    pub(crate) fn take_also_ended(&mut self, samples: &[Sample]) -> Option<u32> {
        let ended = self.heap.peek().is_some_and(|top| top.0.finish.0 <= self.clock + 1e-9);
        if ended { self.take_ended(samples) } else { None }
    }

    /// Starts a sequence; `prefill` in seconds.
    pub(crate) fn start(&mut self, id: u32, sample: &mut Sample, prefill: f64) {
        if self.running == 0 && self.history.len() > 1 {
            self.history.drain(..self.history.len() - 1);
        }
        self.stall += prefill;
        self.running += 1;
        self.contexts += sample.context - self.clock;
        sample.start = self.clock;
        self.heap.push(Reverse(Running {
            finish: Time(self.clock + sample.left),
            sample: id,
            stamp: sample.stamp,
            start: Time(self.clock),
        }));
    }

    /// A sequence leaves, at its end or before. Its stamp must change.
    pub(crate) fn remove(&mut self, sample: &Sample) {
        self.running -= 1;
        self.contexts -= sample.context - sample.start;
        if self.running == 0 {
            self.contexts = 0.0;
            self.stall = 0.0;
        }
    }

    /// All that are running, in the order of their samples.
    pub(crate) fn everyone(&mut self, samples: &[Sample]) -> Vec<u32> {
        let mut ids: Vec<u32> = self
            .heap
            .drain()
            .filter(|running| !void(&running.0, samples))
            .map(|running| running.0.sample)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Tokens in the contexts of all its sequences.
    pub(crate) fn context_tokens(&self) -> f64 {
        (self.contexts + f64::from(self.running) * self.clock).max(0.0)
    }

    /// The pending weights generate from here on. `reread` are seconds to read the contexts again.
    pub(crate) fn loaded(&mut self, reread: f64) {
        self.version = self.pending;
        self.loading = false;
        self.draining = false;
        self.stall += reread;
        if self.history.back().is_some_and(|last| last.0 >= self.clock) {
            // Nothing was generated under it.
            self.history.pop_back();
        }
        self.history.push_back((self.clock, self.version));
        if self.running > 0 && self.history.len() > self.prune_at.max(8) {
            self.prune();
        }
    }

    /// Forgets versions that ended before any of its sequences began.
    fn prune(&mut self) {
        let first = self.heap.iter().map(|r| r.0.start.0).fold(self.clock, f64::min);
        while self.history.get(1).is_some_and(|next| next.0 <= first) {
            self.history.pop_front();
        }
        self.prune_at = 2 * self.history.len();
    }

    /// Tells by which versions the tokens from clock `start` to `end` were generated.
    pub(crate) fn by_version(&self, start: f64, end: f64, mut tell: impl FnMut(u64, f64)) {
        let mut until = end;
        for &(from, version) in self.history.iter().rev() {
            let begin = from.max(start);
            if until > begin {
                tell(version, until - begin);
                until = begin;
            }
            if from <= start {
                return;
            }
        }
    }
}

/// Whether the sequence has left since.
fn void(running: &Running, samples: &[Sample]) -> bool {
    samples[running.sample as usize].stamp != running.stamp
}
