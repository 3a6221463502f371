//! Execution context of the operations: threads, instruction set, scratch memory.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::isa::{Bf16Products, Level};
use crate::simulation::{Simulated, Simulation};
use crate::team::Team;
use crate::{Buf, Element, Isa, OpsError, Order};

/// Size of the largest scratch buffer that is kept for later calls, in bytes. Larger ones are those of attention over
/// more than 26,000 keys (f32, heads of 128), whose computation takes hundreds of times as long as new memory.
const LARGEST_KEPT: usize = 64 << 20;

/// Execution context required by every operation: its own thread pool, the instruction set, and scratch memory that is
/// reused between calls. Clones share all of it.
#[derive(Clone)]
pub struct Ctx {
    inner: Arc<Inner>,
    level: Level,
}

struct Inner {
    workers: Workers,
    threads: usize,
    scratch: Mutex<Scratch>,
}

/// Scratch memory.
#[derive(Default)]
struct Scratch {
    /// Buffers that no call uses.
    kept: Vec<Buf>,
    /// Size of all buffers, also of those in use, in bytes.
    bytes: usize,
    /// Most of it so far.
    peak: usize,
}

/// What executes the pieces of an operation.
enum Workers {
    /// The calling thread.
    Caller,
    /// The calling thread and helpers.
    Team(Team),
    /// The calling thread, which measures them.
    Simulated(Simulation),
}

impl Ctx {
    /// A context of `threads` threads, including the caller's, on the fastest available instruction set.
    pub fn new(threads: usize) -> Result<Self, OpsError> {
        Self::build(threads, Level::best())
    }

    /// A context that runs everything on the caller's thread, for callers that are parallel themselves.
    pub fn serial() -> Self {
        Self::from_parts(Workers::Caller, 1, Level::best())
    }

    /// As [`Ctx::new`], on a given instruction set, for tests and comparisons.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, OpsError> {
        let level = Level::of(isa)
            .ok_or_else(|| OpsError::IsaUnavailable { requested: isa, available: Isa::available() })?;
        Self::build(threads, level)
    }

    /// This context with another order of bf16 products.
    pub fn with_order(&self, order: Order) -> Result<Self, OpsError> {
        let level = self
            .level
            .with_order(order)
            .ok_or_else(|| OpsError::OrderUnavailable { order: order.name(), isa: self.isa() })?;
        Ok(Self { level, ..self.clone() })
    }

    /// This context with another order of bf16 products, emulated in software if the instruction set does not have it.
    #[must_use]
    pub fn reproducing(&self, order: Order) -> Self {
        let level = self.level.with_order(order).unwrap_or_else(|| self.level.with_software_tiles());
        Self { level, ..self.clone() }
    }

    /// A context of `threads` threads of its own that computes as this one.
    pub fn with_threads(&self, threads: usize) -> Result<Self, OpsError> {
        Self::build(threads, self.level)
    }

    /// As [`Ctx::new`], with an emulation in software of bf16 products by tiles: for tests, and to obtain the results
    /// of AMX on any processor. Slow.
    pub fn with_software_tiles(threads: usize) -> Result<Self, OpsError> {
        Self::build(threads, Level::best().with_software_tiles())
    }

    /// A context that divides operations as for `threads` threads, executes them on the calling thread, and predicts what they
    /// would take: to see on a small machine how well the work is divided for a large one. `clock` returns the time,
    /// best the processor time of the thread.
    ///
    /// # Panics
    ///
    /// If `threads` is 0.
    pub fn simulated(threads: usize, clock: fn() -> f64) -> Self {
        Self::serial().simulating(threads, clock)
    }

    /// As [`simulated`](Self::simulated), computing as this context.
    ///
    /// # Panics
    ///
    /// If `threads` is 0.
    #[must_use]
    pub fn simulating(&self, threads: usize, clock: fn() -> f64) -> Self {
        assert!(threads > 0, "a compute context needs at least one thread");
        Self::from_parts(Workers::Simulated(Simulation::new(clock)), threads, self.level)
    }

    /// The jobs since the last call by their operation, the place in the source that starts them; none unless the context is
    /// [`simulated`](Self::simulated).
    pub fn take_simulated(&self) -> Vec<(String, Simulated)> {
        match &self.inner.workers {
            Workers::Simulated(simulation) => simulation.take(self.inner.threads),
            Workers::Caller | Workers::Team(_) => Vec::new(),
        }
    }

    fn build(threads: usize, level: Level) -> Result<Self, OpsError> {
        let workers = match threads {
            0 => return Err(OpsError::NoThreads),
            1 => Workers::Caller,
            _ => {
                Workers::Team(Team::new(threads - 1).map_err(|source| OpsError::Threads { threads, source })?)
            }
        };
        Ok(Self::from_parts(workers, threads, level))
    }

    fn from_parts(workers: Workers, threads: usize, level: Level) -> Self {
        Self { inner: Arc::new(Inner { workers, threads, scratch: Mutex::default() }), level }
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// Instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.level.isa()
    }

    /// Order of bf16 products, which determines their rounding.
    pub fn order(&self) -> Order {
        self.level.order()
    }

    /// Order of bf16 matrix products and the instructions that compute it.
    pub fn bf16_products(&self) -> &'static str {
        match (self.level.bf16(), self.isa()) {
            (Bf16Products::Widened, Isa::Avx2) => "widened (avx2)",
            (Bf16Products::Widened, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx) => "widened (avx512)",
            (Bf16Products::Widened, Isa::Neon) => "widened (neon)",
            (Bf16Products::Widened, Isa::Portable) => "widened (portable)",
            (Bf16Products::AmxTiles, _) => "tiles (amx)",
            (Bf16Products::SoftwareTiles, _) => "tiles (software)",
            (Bf16Products::NativePairs, _) => "dot pairs (avx512-bf16)",
            (Bf16Products::Pairs, Isa::Avx2) => "dot pairs (avx2)",
            (Bf16Products::Pairs, Isa::Avx512) => "dot pairs (avx512)",
            (Bf16Products::Pairs, _) => "dot pairs (portable)",
        }
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Calls `f` once with each of `0..n`, on all threads of the context, in any order, and returns when all calls have
    /// returned. `f` must not rely on two calls running concurrently.
    ///
    /// # Panics
    /// If a call panics, after the others have ended.
    #[track_caller]
    pub fn parallel_for(&self, n: usize, f: impl Fn(usize) + Sync) {
        match &self.inner.workers {
            Workers::Team(team) if n > 1 => team.run(n, &f),
            Workers::Simulated(simulation) if n > 1 => simulation.run(Location::caller(), n, &f),
            _ => (0..n).for_each(f),
        }
    }

    /// Passes a scratch buffer of `len` numbers with unspecified content to `f`.
    pub(crate) fn with_scratch<R>(&self, len: usize, f: impl FnOnce(&mut Buf) -> R) -> R {
        self.with_scratch_in(len, f)
    }

    /// As [`Ctx::with_scratch`], in any format.
    pub(crate) fn with_scratch_in<E: Element, R>(&self, len: usize, f: impl FnOnce(&mut Buf<E>) -> R) -> R {
        let mut buf = self.scratch().take(len * size_of::<E>()).into_format();
        let before = buf.capacity_bytes();
        buf.resize(len);
        if buf.capacity_bytes() > before {
            self.scratch().grow(buf.capacity_bytes() - before);
        }
        let result = f(&mut buf);
        self.scratch().give_back(buf.into_format());
        result
    }

    /// Size of all scratch buffers at the same time, at its peak so far, in bytes.
    pub fn scratch_peak(&self) -> usize {
        self.scratch().peak
    }

    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.inner.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size of the scratch buffers that are kept, in bytes.
    #[cfg(test)]
    fn kept_bytes(&self) -> usize {
        self.scratch().kept.iter().map(Buf::capacity_bytes).sum()
    }
}

impl Scratch {
    /// Takes the smallest buffer of at least this size, or else the largest one, which the caller enlarges. There are then no
    /// more large buffers than are in use at the same time, whichever smaller ones are in between.
    fn take(&mut self, bytes: usize) -> Buf {
        let sizes = || self.kept.iter().map(Buf::capacity_bytes).enumerate();
        let smallest = sizes().filter(|&(_, size)| size >= bytes).min_by_key(|&(_, size)| size);
        let found = smallest.or_else(|| sizes().max_by_key(|&(_, size)| size));
        found.map(|(index, _)| self.kept.swap_remove(index)).unwrap_or_default()
    }

    /// Counts memory of a buffer in use.
    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.peak = self.peak.max(self.bytes);
    }

    /// Keeps a buffer, unless it is large.
    fn give_back(&mut self, buf: Buf) {
        if buf.capacity_bytes() <= LARGEST_KEPT {
            self.kept.push(buf);
        } else {
            self.bytes -= buf.capacity_bytes();
        }
    }
}

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx")
            .field("threads", &self.threads())
            .field("isa", &self.isa())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_piece_runs_once() {
        for threads in 1..=4 {
            let ctx = Ctx::new(threads).unwrap();
            for n in [0, 1, 2, 3, 100] {
                let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                ctx.parallel_for(n, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {n} pieces"
                );
            }
        }
    }

    #[test]
    fn nested_parallel_for_is_supported() {
        let ctx = Ctx::new(3).unwrap();
        let count = AtomicUsize::new(0);
        ctx.parallel_for(8, |_| {
            ctx.parallel_for(8, |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_context_usable() {
        let ctx = Ctx::new(2).unwrap();
        let run = std::panic::AssertUnwindSafe(|| ctx.parallel_for(4, |i| assert_ne!(i, 2)));
        assert!(std::panic::catch_unwind(run).is_err());
        ctx.parallel_for(4, |_| ());
    }

    /// Results are complete when the call returns, whichever thread wrote them.
    #[test]
    fn many_small_jobs_from_several_callers_all_complete() {
        let ctx = Ctx::new(3).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..3 {
                let ctx = &ctx;
                scope.spawn(move || {
                    for round in 0..3000_usize {
                        let n = 1 + (round * 7 + caller) % 9;
                        let mut out = vec![0; n];
                        let cells: Vec<Mutex<&mut usize>> = out.iter_mut().map(Mutex::new).collect();
                        ctx.parallel_for(n, |i| **cells[i].lock().unwrap() += i + round);
                        assert!(out.iter().enumerate().all(|(i, &x)| x == i + round));
                    }
                });
            }
        });
    }

    /// Both threads are needed: each piece waits until the other has started.
    #[test]
    fn helpers_that_wait_and_helpers_that_sleep_take_part() {
        let ctx = Ctx::new(2).unwrap();
        for pause in [0, 0, 20] {
            std::thread::sleep(std::time::Duration::from_millis(pause));
            let started = AtomicUsize::new(0);
            ctx.parallel_for(2, |_| {
                started.fetch_add(1, Ordering::SeqCst);
                let since = std::time::Instant::now();
                while started.load(Ordering::SeqCst) < 2 {
                    assert!(since.elapsed().as_secs() < 60, "only one thread takes part");
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn zero_threads_and_unsupported_instruction_sets_are_errors() {
        assert!(matches!(Ctx::new(0), Err(OpsError::NoThreads)));
        let foreign = if cfg!(target_arch = "x86_64") { Isa::Neon } else { Isa::Avx2 };
        let error = Ctx::with_isa(1, foreign).unwrap_err();
        let hint = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(hint.starts_with("available: portable"), "{hint}");
    }

    #[test]
    fn large_scratch_is_freed() {
        let ctx = Ctx::serial();
        let floats = LARGEST_KEPT / size_of::<f32>();
        // Untouched pages take no memory.
        ctx.with_scratch(10 * floats, |large| {
            ctx.with_scratch(1000, |_| ());
            assert_eq!(large.len(), 10 * floats);
        });
        assert_eq!(ctx.kept_bytes(), 4032, "the small buffer only, in whole cache lines");
        ctx.with_scratch(floats / 2, |_| ());
        assert!((floats * 2..=LARGEST_KEPT).contains(&ctx.kept_bytes()), "{}", ctx.kept_bytes());
    }

    /// Large and small requests in turns, nested and at the same time: one large buffer for each of the threads.
    #[test]
    fn small_requests_do_not_multiply_large_buffers() {
        let ctx = Ctx::new(2).unwrap();
        let large = 1 << 18;
        let both = std::sync::Barrier::new(2);
        for round in 0..20 {
            ctx.with_scratch(10 + round, |_| {
                ctx.with_scratch(100, |_| ctx.with_scratch(large, |_| ()));
            });
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        ctx.with_scratch(large, |_| {
                            both.wait();
                            ctx.with_scratch(50, |_| both.wait());
                        });
                    });
                }
            });
        }
        let most = 2 * (large * size_of::<f32>() + 64) + 8192;
        assert!(ctx.kept_bytes() <= most, "{} of {most}", ctx.kept_bytes());
    }

    #[test]
    fn scratch_is_reused_and_nests() {
        let ctx = Ctx::serial();
        let first = ctx.with_scratch(100, |outer| {
            ctx.with_scratch(10, |inner| assert_ne!(inner.as_slice().as_ptr(), outer.as_slice().as_ptr()));
            outer.as_slice().as_ptr() as usize
        });
        assert_eq!(first, ctx.with_scratch(50, |buf| buf.as_slice().as_ptr() as usize));
    }
}
