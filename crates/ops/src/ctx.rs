//! Where operations run: threads, instruction set, scratch memory.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::isa::{Bf16Products, Level};
use crate::parallel::share;
use crate::{Buf, Element, Isa, OpsError};

/// What every operation needs to run: a pool of threads of its own, the instruction set, and scratch memory that is
/// kept from call to call. Clones share all of it.
#[derive(Clone)]
pub struct Ctx {
    inner: Arc<Inner>,
}

struct Inner {
    /// The threads beside the caller's, which always works too; `None` runs everything on the caller's.
    helpers: Option<rayon::ThreadPool>,
    threads: usize,
    level: Level,
    scratch: Mutex<Vec<Buf>>,
}

impl Ctx {
    /// A context of `threads` threads, the caller's counted, on the fastest instruction set there is.
    pub fn new(threads: usize) -> Result<Self, OpsError> {
        Self::build(threads, Level::best())
    }

    /// A context that runs everything on the caller's thread: for callers that are parallel themselves.
    pub fn serial() -> Self {
        Self::from_parts(None, 1, Level::best())
    }

    /// As [`Ctx::new`], on a given instruction set: for tests and for comparing.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, OpsError> {
        let level = Level::of(isa)
            .ok_or_else(|| OpsError::IsaUnavailable { requested: isa, available: Isa::available() })?;
        Self::build(threads, level)
    }

    /// As [`Ctx::new`], with products of bf16 matrices as tiles compute them, in software: for tests, and to see on any
    /// processor what AMX would give. It is slow.
    pub fn with_software_tiles(threads: usize) -> Result<Self, OpsError> {
        Self::build(threads, Level::with_software_tiles())
    }

    fn build(threads: usize, level: Level) -> Result<Self, OpsError> {
        let helpers = match threads {
            0 => return Err(OpsError::NoThreads),
            1 => None,
            _ => Some(
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads - 1)
                    .thread_name(|i| format!("rloom-ops-{i}"))
                    .build()
                    .map_err(|source| OpsError::Threads { threads, source })?,
            ),
        };
        Ok(Self::from_parts(helpers, threads, level))
    }

    fn from_parts(helpers: Option<rayon::ThreadPool>, threads: usize, level: Level) -> Self {
        Self { inner: Arc::new(Inner { helpers, threads, level, scratch: Mutex::new(Vec::new()) }) }
    }

    /// Number of threads, the caller's counted.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// The instruction set that the kernels run on.
    pub fn isa(&self) -> Isa {
        self.inner.level.isa()
    }

    /// How products of bf16 matrices are computed: `dot pairs (…)`, which give the same bits on every instruction set,
    /// or `tiles (…)`, which give others.
    pub fn products(&self) -> &'static str {
        match (self.level().bf16(), self.isa()) {
            (Bf16Products::AmxTiles, _) => "tiles (amx)",
            (Bf16Products::SoftwareTiles, _) => "tiles (software)",
            (Bf16Products::NativePairs, _) => "dot pairs (avx512-bf16)",
            (Bf16Products::Pairs, Isa::Avx2) => "dot pairs (avx2)",
            (Bf16Products::Pairs, Isa::Avx512) => "dot pairs (avx512)",
            (Bf16Products::Pairs, _) => "dot pairs (portable)",
        }
    }

    pub(crate) fn level(&self) -> Level {
        self.inner.level
    }

    /// Calls `f` once with each of `0..n`, on all threads of the context, in any order, and returns when all calls
    /// have returned. `f` must not rely on two calls running at the same time.
    ///
    /// # Panics
    /// If a call panics, after the others have ended.
    pub fn parallel_for(&self, n: usize, f: impl Fn(usize) + Sync) {
        match &self.inner.helpers {
            Some(pool) if n > 1 => share(pool, self.inner.threads - 1, n, &f),
            _ => (0..n).for_each(f),
        }
    }

    /// Lends a scratch buffer of `len` numbers with unspecified content.
    pub(crate) fn with_scratch<R>(&self, len: usize, f: impl FnOnce(&mut Buf) -> R) -> R {
        self.with_scratch_in(len, f)
    }

    /// As [`Ctx::with_scratch`], in either format.
    pub(crate) fn with_scratch_in<E: Element, R>(&self, len: usize, f: impl FnOnce(&mut Buf<E>) -> R) -> R {
        let stack = || self.inner.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buf = stack().pop().unwrap_or_default().into_format();
        buf.resize(len);
        let result = f(&mut buf);
        stack().push(buf.into_format());
        result
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
    fn pieces_may_be_parallel_themselves() {
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

    /// Results are all there when the call returns, whichever thread wrote them, time and again.
    #[test]
    fn many_small_jobs_from_several_callers_leave_nothing_undone() {
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

    #[test]
    fn no_threads_and_foreign_instruction_sets_are_errors() {
        assert!(matches!(Ctx::new(0), Err(OpsError::NoThreads)));
        let foreign = if cfg!(target_arch = "x86_64") { Isa::Neon } else { Isa::Avx2 };
        let message = Ctx::with_isa(1, foreign).unwrap_err().to_string();
        assert!(message.contains("hint: it has portable"), "{message}");
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
