//! Prediction of the time that jobs would take on more threads than the machine has: pieces are executed one after the other
//! and their durations distributed over imagined threads, by the rules of [`Team`](crate::team::Team).
//!
//! What it cannot see: threads that share caches, bandwidth or a clock that falls when all are busy.

use std::collections::{BTreeMap, VecDeque};
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::team::shares;

/// Jobs of one operation on a context of [`Ctx::simulated`](crate::Ctx::simulated).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Number of jobs.
    pub jobs: usize,
    /// Their pieces.
    pub pieces: usize,
    /// Duration of all pieces, one after the other.
    pub serial: Duration,
    /// Duration on the imagined threads, each job from its start to the end of its last piece.
    pub parallel: Duration,
}

/// Imagined threads.
#[derive(Debug, Default)]
pub(crate) struct Simulation {
    operations: Mutex<Operations>,
}

/// Jobs by the place in the source that starts them, as file and line.
type Operations = BTreeMap<(&'static str, u32), Simulated>;

impl Simulation {
    /// Executes all pieces on the calling thread.
    pub(crate) fn run(&self, operation: &Location<'static>, threads: usize, pieces: usize, work: &dyn Fn(usize)) {
        let durations: Vec<Duration> = (0..pieces)
            .map(|piece| {
                let start = Instant::now();
                work(piece);
                start.elapsed()
            })
            .collect();
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        let total = operations.entry((operation.file(), operation.line())).or_default();
        total.jobs += 1;
        total.pieces += pieces;
        total.serial += durations.iter().sum::<Duration>();
        total.parallel += makespan(&durations, threads);
    }

    /// The jobs since the last call, with the names of their operations.
    pub(crate) fn take(&self) -> Vec<(String, Simulated)> {
        let operations = std::mem::take(&mut *self.operations.lock().unwrap_or_else(PoisonError::into_inner));
        operations.into_iter().map(|((file, line), jobs)| (format!("{file}:{line}"), jobs)).collect()
    }
}

/// Time until all pieces are done if each thread starts with its own share and then takes the last pieces of others'.
fn makespan(durations: &[Duration], threads: usize) -> Duration {
    let mut left: Vec<VecDeque<Duration>> =
        shares(0..durations.len(), threads).map(|share| durations[share].iter().copied().collect()).collect();
    let mut free = vec![Duration::ZERO; threads];
    for _ in durations {
        let thread = (0..threads).min_by_key(|&thread| free[thread]).unwrap_or(0);
        let others = (1..threads).map(|i| (thread + i) % threads);
        let own = left[thread].pop_front();
        let next = own.or_else(|| others.into_iter().find_map(|other| left[other].pop_back()));
        free[thread] += next.unwrap_or_default();
    }
    free.into_iter().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(durations: &[u64], threads: usize) -> u128 {
        let durations: Vec<Duration> = durations.iter().map(|&n| Duration::from_micros(n)).collect();
        makespan(&durations, threads).as_micros()
    }

    #[test]
    fn threads_take_their_share_and_then_the_last_pieces_of_others() {
        assert_eq!(micros(&[], 4), 0);
        assert_eq!(micros(&[5, 6, 7], 1), 18);
        assert_eq!(micros(&[3; 8], 4), 6);
        assert_eq!(micros(&[3; 9], 4), 9, "one thread has a third piece");
        assert_eq!(micros(&[3, 4], 8), 4, "more threads than pieces");
        // The first thread has 10 and 10, the second 1 and 1, and takes the first one's last.
        assert_eq!(micros(&[10, 10, 1, 1], 2), 12);
    }

    #[test]
    fn pieces_of_a_simulated_context_run_once_and_are_counted() {
        let ctx = crate::Ctx::simulated(64);
        assert_eq!(ctx.threads(), 64);
        let calls = Mutex::new(vec![0; 200]);
        ctx.parallel_for(200, |i| calls.lock().unwrap()[i] += 1);
        assert_eq!(calls.into_inner().unwrap(), vec![1; 200]);
        let [(operation, jobs)] = &*ctx.take_simulated() else { panic!("one operation") };
        assert!(operation.contains(file!()), "{operation}");
        assert_eq!((jobs.jobs, jobs.pieces), (1, 200));
        assert!(jobs.parallel <= jobs.serial);
        assert_eq!(ctx.take_simulated(), []);
    }
}
