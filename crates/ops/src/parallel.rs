//! Sharing out the pieces of one operation among threads.
//!
//! Not rayon's `scope`, which returns when all of its tasks have run: on a busy machine a helper may be scheduled long
//! after the caller has done all the work, and the caller would wait for it to find nothing left. Here the caller
//! waits for those helpers only that have begun.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};

/// Set in [`Job::inside`] once no helper may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// Turns of a busy wait for the last helper before the caller goes to sleep: some tens of microseconds.
const SPINS: usize = 2000;

struct Job {
    /// The caller's function. It lives until the caller returns, which is when `inside` is `CLOSED` and nothing else.
    work: *const (dyn Fn(usize) + Sync),
    pieces: usize,
    next: AtomicUsize,
    /// Number of helpers at work, and `CLOSED`.
    inside: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

// SAFETY: `work` points to a `Sync` function, and `help` follows the pointer only while the caller waits.
unsafe impl Send for Job {}
// SAFETY: as above; everything else in it is `Sync`.
unsafe impl Sync for Job {}

impl Job {
    /// Takes pieces until there are none. A panic ends the job and is kept for the caller.
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

    /// What a helper does when it comes to the job, however late.
    fn help(&self) {
        let enter = |inside| (inside & CLOSED == 0).then_some(inside + 1);
        if self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
            return;
        }
        // SAFETY: the caller returns only after it has closed the job and seen that nobody is inside, and this thread
        // is inside.
        self.take_pieces(unsafe { &*self.work });
        if self.inside.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.caller.unpark();
        }
    }
}

/// Calls `work` once with each of `0..pieces`, on the calling thread and up to `helpers` threads of `pool`.
pub(crate) fn share(pool: &rayon::ThreadPool, helpers: usize, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
    // SAFETY: only the lifetime changes; `Job::help` says why the function is not called after it.
    let erased: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let job = Arc::new(Job {
        work: erased,
        pieces,
        next: AtomicUsize::new(0),
        inside: AtomicUsize::new(0),
        panic: Mutex::new(None),
        caller: thread::current(),
    });
    for _ in 0..helpers.min(pieces - 1) {
        let job = Arc::clone(&job);
        pool.spawn(move || job.help());
    }
    job.take_pieces(work);
    let mut inside = job.inside.fetch_or(CLOSED, Ordering::Acquire) | CLOSED;
    let mut spins = 0;
    while inside != CLOSED {
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            thread::park();
        }
        inside = job.inside.load(Ordering::Acquire);
    }
    let panic = job.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}
