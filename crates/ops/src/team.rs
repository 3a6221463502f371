//! Threads that execute the pieces of an operation together with its caller.
//!
//! An operation of a small model takes tens of microseconds, and a step has hundreds of them. Helpers therefore wait for
//! the next job for a while before they sleep, a job allocates nothing, and starting one takes no lock. Every
//! participant has its own contiguous share of the pieces and takes from others' only when it has none left: a thread
//! mostly reads what it wrote in the previous operation, from its own cache and, where memory belongs to processors, from
//! the nearest memory. The caller waits only for helpers that have started: on a busy machine, one may be scheduled long
//! after the others have done its share.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time that a helper waits for the next job before it sleeps, and a caller for the last helpers: about what waking a
/// thread costs in a virtual machine, and longer than most gaps between operations.
const PATIENCE: Duration = Duration::from_micros(50);

/// Time that a caller waits for the last helpers before it sleeps. They are at work, or need this processor.
const PATIENCE_OF_CALLER: Duration = Duration::from_micros(10);

/// Iterations between two looks at the clock: about a microsecond.
const SPINS: usize = 32;

type Work = *const (dyn Fn(usize) + Sync);

/// Helper threads, which end when this is dropped.
pub(crate) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Whether a caller uses the helpers. Its job is in the fields below.
    claimed: AtomicBool,
    /// Twice the number of jobs so far, plus one while helpers may enter the latest of them.
    job: AtomicU64,
    /// The function of the job. Valid while the job is open or a helper is in it.
    work: UnsafeCell<Option<Work>>,
    /// One per participant; the caller is the first.
    places: Box<[Place]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    end: AtomicBool,
    /// Number of helpers that sleep, or are about to.
    sleepers: AtomicUsize,
    caller_waits: AtomicBool,
    lock: Mutex<()>,
    /// Wakes helpers, for a job or the end.
    start: Condvar,
    /// Wakes the caller, whose helpers have left.
    done: Condvar,
}

/// What one participant writes often, in a cache line of its own (two, since processors fetch pairs).
#[derive(Default)]
#[repr(align(128))]
struct Place {
    /// The job that the helper is in, as [`Shared::job`] while it is open; 0 if none.
    entered: AtomicU64,
    /// Pieces not yet taken: the first, and one past the last in the upper half.
    share: AtomicU64,
}

// SAFETY: `work` is written only by the caller that has claimed the helpers, while the job is closed and no helper is in
// it, and points to a `Sync` function. All other fields are `Send` and `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Place {
    fn deal(&self, pieces: &Range<u32>) {
        self.share.store(u64::from(pieces.end) << 32 | u64::from(pieces.start), Ordering::Relaxed);
    }

    /// Takes the first piece of the share, or the last.
    fn take(&self, first: bool) -> Option<u32> {
        let mut share = self.share.load(Ordering::Relaxed);
        loop {
            let (start, end) = (share as u32, (share >> 32) as u32);
            if start >= end {
                return None;
            }
            let (piece, rest) = if first { (start, share + 1) } else { (end - 1, share - (1 << 32)) };
            match self.share.compare_exchange_weak(share, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(piece),
                Err(now) => share = now,
            }
        }
    }
}

impl Shared {
    /// A piece of the participant's own share, or else of another's.
    fn take(&self, participant: usize) -> Option<u32> {
        let others = || self.places[participant + 1..].iter().chain(&self.places[..participant]);
        self.places[participant].take(true).or_else(|| others().find_map(|place| place.take(false)))
    }

    /// Executes pieces until none are left. A panic ends the job and is stored for the caller.
    fn take_pieces(&self, participant: usize, work: &(dyn Fn(usize) + Sync)) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            while let Some(piece) = self.take(participant) {
                work(piece as usize);
            }
        }));
        if let Err(panic) = result {
            self.places.iter().for_each(|place| place.deal(&(0..0)));
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Opens a job and wakes helpers that sleep, as many as have a piece.
    fn open(&self, pieces: &Range<u32>, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes; `enter` explains why the function is not called after it ends.
        let erased: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
        // SAFETY: this caller has claimed the helpers, the job is closed, and none of them is in it.
        unsafe { *self.work.get() = Some(erased) };
        let all = pieces.start as usize..pieces.end as usize;
        for (place, share) in self.places.iter().zip(shares(all, self.places.len())) {
            place.deal(&(share.start as u32..share.end as u32));
        }
        // Sequentially consistent, as in `sleep`: either a helper sees the job, or it is among the sleepers.
        self.job.fetch_add(1, Ordering::SeqCst);
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers > 0 {
            drop(self.lock());
            let needed = (pieces.end - pieces.start) as usize - 1;
            if needed < sleepers {
                (0..needed).for_each(|_| self.start.notify_one());
            } else {
                self.start.notify_all();
            }
        }
    }

    /// Closes the job and waits for the helpers in it.
    fn close(&self) {
        // Sequentially consistent, as in `enter`: either a helper sees that the job is closed, or it is seen here.
        let job = self.job.fetch_add(1, Ordering::SeqCst);
        let is_done = || self.places.iter().all(|place| place.entered.load(Ordering::SeqCst) != job);
        if wait_for(PATIENCE_OF_CALLER, || is_done().then_some(())).is_none() {
            let mut guard = self.lock();
            self.caller_waits.store(true, Ordering::SeqCst);
            while !is_done() {
                guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.caller_waits.store(false, Ordering::Relaxed);
        }
    }

    /// Takes part in an open job, unless it has been closed.
    fn enter(&self, helper: usize, job: u64) {
        let place = &self.places[helper];
        place.entered.store(job, Ordering::SeqCst);
        if self.job.load(Ordering::SeqCst) == job {
            // SAFETY: the job was open after this helper had entered it, so the caller sees it there when it closes the
            // job, and returns only after it has left. The function was written before the job was opened.
            let work = unsafe { (*self.work.get()).map(|work| &*work) };
            if let Some(work) = work {
                self.take_pieces(helper, work);
            }
        }
        place.entered.store(0, Ordering::SeqCst);
        if self.caller_waits.load(Ordering::SeqCst) {
            drop(self.lock());
            self.done.notify_all();
        }
    }

    /// Body of a helper's thread.
    fn help(&self, helper: usize) {
        let mut last = 0;
        while !self.end.load(Ordering::Relaxed) {
            let next = || {
                let job = self.job.load(Ordering::SeqCst);
                (job != last && job % 2 == 1).then_some(job)
            };
            let waited_for = wait_for(PATIENCE, next);
            if let Some(job) = waited_for.or_else(|| self.sleep(next)) {
                last = job;
                self.enter(helper, job);
                if waited_for.is_none() {
                    // On a busy machine it was woken on the processor of the caller, which would wait for the next sleep.
                    thread::yield_now();
                }
            }
        }
    }

    /// Sleeps until there is a job, or the end.
    fn sleep(&self, next: impl Fn() -> Option<u64>) -> Option<u64> {
        let mut guard = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut job = next();
        while job.is_none() && !self.end.load(Ordering::Relaxed) {
            guard = self.start.wait(guard).unwrap_or_else(PoisonError::into_inner);
            job = next();
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        job
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Consecutive shares of the pieces, one per participant, whose sizes differ by at most one.
pub(crate) fn shares(pieces: Range<usize>, participants: usize) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = pieces;
    let bound = move |i: usize| start + (end - start) * i / participants;
    (0..participants).map(move |i| bound(i)..bound(i + 1))
}

/// Calls `ready` until it returns something or the patience ends.
fn wait_for<T>(patience: Duration, ready: impl Fn() -> Option<T>) -> Option<T> {
    let mut since = None;
    loop {
        for _ in 0..SPINS {
            if let Some(found) = ready() {
                return Some(found);
            }
            spin_loop();
        }
        if since.get_or_insert_with(Instant::now).elapsed() > patience {
            return None;
        }
    }
}

impl Team {
    /// A team of this many helpers.
    pub(crate) fn new(helpers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            claimed: AtomicBool::new(false),
            job: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            places: (0..=helpers).map(|_| Place::default()).collect(),
            panic: Mutex::new(None),
            end: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            caller_waits: AtomicBool::new(false),
            lock: Mutex::new(()),
            start: Condvar::new(),
            done: Condvar::new(),
        });
        // Helpers that have started end with the team if another cannot be.
        let mut team = Self { shared, helpers: Vec::with_capacity(helpers) };
        for helper in 1..=helpers {
            let shared = Arc::clone(&team.shared);
            let name = format!("rloom-ops-{helper}");
            team.helpers.push(thread::Builder::new().name(name).spawn(move || shared.help(helper))?);
        }
        Ok(team)
    }

    /// Calls `work` once with each of `0..pieces`, on the calling thread and the helpers. While they work for another
    /// caller, or if this is one of them, the calling thread works alone, until they are free.
    ///
    /// # Panics
    ///
    /// If a call panics, after the others have ended.
    pub(crate) fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        for next in 0..pieces {
            let rest = u32::try_from(next).ok().zip(u32::try_from(pieces).ok());
            if let Some((next, end)) = rest
                && end - next > 1
                && !shared.claimed.load(Ordering::Relaxed)
                && !shared.claimed.swap(true, Ordering::Acquire)
            {
                shared.open(&(next..end), work);
                shared.take_pieces(0, work);
                shared.close();
                let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
                shared.claimed.store(false, Ordering::Release);
                return panic.map_or((), |panic| resume_unwind(panic));
            }
            work(next);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        drop(self.shared.lock());
        self.shared.start.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper cannot have panicked outside a job, whose panics the caller gets.
            drop(helper.join());
        }
    }
}
