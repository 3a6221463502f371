//! Prediction of the time that jobs would take on more threads than the machine has: pieces are executed one after the other
//! and their durations distributed over imagined threads, by the rules of [`Team`](crate::team::Team).
//!
//! What it cannot see: threads that share caches, bandwidth or a clock that falls when all are busy.

use std::collections::{BTreeMap, VecDeque};
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

use crate::team::shares;

/// Jobs of one operation on a context of [`Ctx::simulated`](crate::Ctx::simulated). Times are in the unit of its clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Simulated {
    /// Number of jobs.
    pub jobs: usize,
    /// Their pieces.
    pub pieces: usize,
    /// Time of all pieces, one after the other.
    pub serial: f64,
    /// Time on the imagined threads, each job from its start to the end of its last piece.
    pub parallel: f64,
}

/// Imagined threads.
#[derive(Debug)]
pub(crate) struct Simulation {
    clock: fn() -> f64,
    jobs: Mutex<Jobs>,
}

/// Durations of the pieces of each job, by the place in the source that starts it, as file and line.
type Jobs = BTreeMap<(&'static str, u32), Vec<Vec<f64>>>;

impl Simulation {
    pub(crate) fn new(clock: fn() -> f64) -> Self {
        Self { clock, jobs: Mutex::default() }
    }

    /// Executes all pieces on the calling thread.
    pub(crate) fn run(&self, operation: &Location<'static>, pieces: usize, work: &dyn Fn(usize)) {
        let measured = |piece| {
            let start = (self.clock)();
            work(piece);
            (self.clock)() - start
        };
        let durations = (0..pieces).map(measured).collect();
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.entry((operation.file(), operation.line())).or_default().push(durations);
    }

    /// The jobs since the last call on this number of threads, with the names of their operations.
    pub(crate) fn take(&self, threads: usize) -> Vec<(String, Simulated)> {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner));
        let total = |jobs: Vec<Vec<f64>>| Simulated {
            jobs: jobs.len(),
            pieces: jobs.iter().map(Vec::len).sum(),
            serial: jobs.iter().flatten().sum(),
            parallel: jobs.iter().map(|durations| makespan(durations, threads)).sum(),
        };
        jobs.into_iter().map(|((file, line), jobs)| (format!("{file}:{line}"), total(jobs))).collect()
    }
}

/// Time until all pieces are done if each thread starts with its own share and then takes the last pieces of others'.
fn makespan(durations: &[f64], threads: usize) -> f64 {
    let mut left: Vec<VecDeque<f64>> =
        shares(0..durations.len(), threads).map(|share| durations[share].iter().copied().collect()).collect();
    let mut free = vec![0.0_f64; threads];
    for _ in durations {
        let thread = (0..threads).min_by(|&a, &b| free[a].total_cmp(&free[b])).unwrap_or(0);
        let others = (1..threads).map(|i| (thread + i) % threads);
        let own = left[thread].pop_front();
        let next = own.or_else(|| others.into_iter().find_map(|other| left[other].pop_back()));
        free[thread] += next.unwrap_or_default();
    }
    free.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_their_share_and_then_the_last_pieces_of_others() {
        assert_eq!(makespan(&[], 4), 0.0);
        assert_eq!(makespan(&[5.0, 6.0, 7.0], 1), 18.0);
        assert_eq!(makespan(&[3.0; 8], 4), 6.0);
        assert_eq!(makespan(&[3.0; 9], 4), 9.0, "one thread has a third piece");
        assert_eq!(makespan(&[3.0, 4.0], 8), 4.0, "more threads than pieces");
        // The first thread has 10 and 10, the second 1 and 1, and takes the first one's last.
        assert_eq!(makespan(&[10.0, 10.0, 1.0, 1.0], 2), 12.0);
    }

    #[test]
    fn pieces_of_a_simulated_context_run_once_and_are_counted() {
        let ctx = crate::Ctx::simulated(64, || 1.5);
        assert_eq!(ctx.threads(), 64);
        let calls = Mutex::new(vec![0; 200]);
        ctx.parallel_for(200, |i| calls.lock().unwrap()[i] += 1);
        assert_eq!(calls.into_inner().unwrap(), vec![1; 200]);
        let [(operation, jobs)] = &*ctx.take_simulated() else { panic!("one operation") };
        assert!(operation.contains(file!()), "{operation}");
        assert_eq!((jobs.jobs, jobs.pieces), (1, 200));
        assert_eq!(ctx.take_simulated(), []);
    }
}
