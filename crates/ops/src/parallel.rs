//! Distribution of the pieces of one operation over threads.
//!
//! Not rayon's `scope`, which returns only when all of its tasks have run: on a busy machine a helper may be scheduled
//! long after the caller has done all the work, and the caller would wait for it in vain. Here the caller waits only
//! for helpers that have started.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};

/// Flag in [`Job::active`] that keeps further helpers from starting.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// Spin iterations before the caller sleeps while waiting for the last helper: some tens of microseconds.
const SPINS: usize = 2000;

struct Job {
    /// The caller's function. Valid until the caller returns, which requires `active == CLOSED`.
    work: *const (dyn Fn(usize) + Sync),
    pieces: usize,
    next: AtomicUsize,
    /// Number of active helpers, and the `CLOSED` flag.
    active: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

// SAFETY: `work` points to a `Sync` function, and `help` dereferences it only while the caller waits.
unsafe impl Send for Job {}
// SAFETY: as above; all other fields are `Sync`.
unsafe impl Sync for Job {}

impl Job {
    /// Executes pieces until none are left. A panic ends the job and is stored for the caller.
    fn take_pieces(&self, work: &(dyn Fn(usize) + Sync)) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= self.pieces {
                    break;
                }
                work(i);
            }
        }));
        if let Err(panic) = result {
            self.next.store(self.pieces, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Body of a helper's task, which may run after the job has closed.
    fn help(&self) {
        let enter = |active| (active & CLOSED == 0).then_some(active + 1);
        if self.active.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
            return;
        }
        // SAFETY: the caller returns only after it has closed the job and no helper is active, and this thread is
        // active.
        self.take_pieces(unsafe { &*self.work });
        if self.active.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.caller.unpark();
        }
    }
}

/// Calls `work` once with each of `0..pieces`, on the calling thread and up to `helpers` threads of `pool`.
pub(crate) fn run_shared(
    pool: &rayon::ThreadPool,
    helpers: usize,
    pieces: usize,
    work: &(dyn Fn(usize) + Sync),
) {
    // SAFETY: only the lifetime changes; `Job::help` explains why the function is not called after it ends.
    let erased: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let job = Arc::new(Job {
        work: erased,
        pieces,
        next: AtomicUsize::new(0),
        active: AtomicUsize::new(0),
        panic: Mutex::new(None),
        caller: thread::current(),
    });
    for _ in 0..helpers.min(pieces - 1) {
        let job = Arc::clone(&job);
        pool.spawn(move || job.help());
    }
    job.take_pieces(work);
    let mut active = job.active.fetch_or(CLOSED, Ordering::Acquire) | CLOSED;
    let mut spins = 0;
    while active != CLOSED {
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            thread::park();
        }
        active = job.active.load(Ordering::Acquire);
    }
    let panic = job.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}
