//! Distance at which a tile prefetches a B that it streams from memory: the faster of two, found by timing the first large
//! products.
//!
//! It cannot be derived from sizes, because processors prefetch by themselves as well. On Zen 4 prefetches of lines that are
//! used much later take the place of those and cost bandwidth; on Zen 5 eight rows stream a quarter faster with them.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Cache lines of all panels at the far distance: what a core reads from memory in about 150 ns.
const FAR_LINES: usize = 96;
/// Bytes of B from which a piece of a product is timed. Smaller ones are mostly in a cache.
const TIMED_BYTES: usize = 512 << 10;
/// Timed pieces of each distance.
const TRIALS: usize = 32;

/// A prefetch distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Distance {
    /// Shortly before use.
    Near,
    /// Long enough before use for a line to come from memory.
    Far,
}

impl Distance {
    /// Steps from a prefetch to its use, in a tile of `panels` panels, each of which takes a line per step.
    pub(crate) fn steps(self, panels: usize) -> usize {
        match self {
            Self::Near => 4,
            Self::Far => FAR_LINES / panels.max(1),
        }
    }
}

/// The choice of the distance.
#[derive(Debug)]
pub(crate) struct Choice {
    /// A [`Distance`], or [`OPEN`].
    chosen: AtomicU8,
    started: AtomicUsize,
    /// Nanoseconds per byte of the timed pieces, by distance.
    times: Mutex<[Vec<f64>; 2]>,
}

/// Value of [`Choice::chosen`] until enough pieces have been timed.
const OPEN: u8 = u8::MAX;

/// The choice for this processor.
pub(crate) static CHOICE: Choice = Choice::new();

impl Choice {
    const fn new() -> Self {
        Self {
            chosen: AtomicU8::new(OPEN),
            started: AtomicUsize::new(0),
            times: Mutex::new([Vec::new(), Vec::new()]),
        }
    }

    fn chosen(&self) -> Option<Distance> {
        // The value alone is shared, so no order of memory is needed.
        match self.chosen.load(Ordering::Relaxed) {
            0 => Some(Distance::Near),
            1 => Some(Distance::Far),
            _ => None,
        }
    }

    /// The distance of a piece that reads this many bytes of B, and the clock that times it while the choice is open.
    pub(crate) fn begin(&self, bytes: usize) -> (Distance, Option<Trial<'_>>) {
        if let Some(distance) = self.chosen() {
            return (distance, None);
        }
        if bytes < TIMED_BYTES {
            return (Distance::Near, None);
        }
        // Not alternately: a thread would then time one distance alone whenever two threads take turns.
        let started = self.started.fetch_add(1, Ordering::Relaxed);
        let distance = if started.count_ones().is_multiple_of(2) { Distance::Near } else { Distance::Far };
        (distance, Some(Trial { choice: self, distance, bytes, start: Instant::now() }))
    }

    /// Adds a time, and chooses the distance with the smaller median once there are enough.
    fn add(&self, distance: Distance, time: f64) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times[distance as usize].push(time);
        if self.chosen().is_some() || times.iter().any(|times| times.len() < TRIALS) {
            return;
        }
        let [near, far] = std::mem::take(&mut *times).map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let chosen = if far < near { Distance::Far } else { Distance::Near };
        self.chosen.store(chosen as u8, Ordering::Relaxed);
    }
}

/// A piece of a product that is being timed.
#[derive(Debug)]
pub(crate) struct Trial<'a> {
    choice: &'a Choice,
    distance: Distance,
    bytes: usize,
    start: Instant,
}

impl Trial<'_> {
    pub(crate) fn end(self) {
        let nanoseconds = self.start.elapsed().as_nanos() as f64;
        self.choice.add(self.distance, nanoseconds / self.bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A choice after as many times as it takes; of each distance every fifth piece was interrupted.
    fn choice(near: f64, far: f64) -> Choice {
        let choice = Choice::new();
        for i in 0..TRIALS {
            let interruption = if i % 5 == 0 { 1e6 } else { 0.0 };
            choice.add(Distance::Far, far + interruption);
            assert_eq!(choice.chosen(), None, "after {i} pieces");
            choice.add(Distance::Near, near);
        }
        choice
    }

    #[test]
    fn the_faster_distance_is_chosen() {
        assert_eq!(choice(1.0, 0.8).chosen(), Some(Distance::Far));
        assert_eq!(choice(0.8, 1.0).chosen(), Some(Distance::Near));
        // Times that come later change nothing.
        let choice = choice(1.0, 0.8);
        (0..TRIALS).for_each(|_| choice.add(Distance::Near, 0.1));
        (0..TRIALS).for_each(|_| choice.add(Distance::Far, 1.0));
        assert_eq!(choice.chosen(), Some(Distance::Far));
    }

    #[test]
    fn pieces_are_timed_until_the_choice() {
        let open = Choice::new();
        let (distance, trial) = open.begin(TIMED_BYTES - 1);
        assert!(trial.is_none() && distance == Distance::Near);
        let mut begun = [0; 2];
        for _ in 0..4 * TRIALS {
            let (distance, trial) = open.begin(TIMED_BYTES);
            begun[distance as usize] += 1;
            if let Some(trial) = trial {
                assert_eq!(trial.distance, distance);
                trial.end();
            }
        }
        let chosen = open.chosen().unwrap();
        let (distance, trial) = open.begin(TIMED_BYTES);
        assert!(trial.is_none() && distance == chosen);
        // As many of each while the choice was open.
        let fewer = begun[1 - chosen as usize];
        assert_eq!(fewer, TRIALS, "{begun:?}");
    }

    #[test]
    fn threads_that_take_turns_time_both_distances() {
        let choice = Choice::new();
        let begun = [(); 4].map(|()| choice.begin(TIMED_BYTES).0);
        assert!(begun[0] != begun[2] && begun[1] != begun[3], "{begun:?}");
    }

    #[test]
    fn far_prefetches_are_as_many_lines_for_each_tile() {
        for panels in [1, 2, 3, 4, 6] {
            assert_eq!(Distance::Far.steps(panels) * panels, FAR_LINES);
        }
    }
}
