//! Faults of the disk and deaths of the process, for tests alone: nothing in the product makes a plan.
//!
//! A test first runs with an empty [`Plan`] and reads the [`points`](Installed::points) that were reached, then once
//! more for each of them with a fault there. A plan concerns the paths below one folder, so tests that run side by
//! side do not meet.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What happens at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No space is left, and nothing of it was done.
    Full,
    /// Half of a write is done, then no space is left.
    Short,
    /// The device fails, and nothing of it was done.
    Device,
    /// The process ends before it, as if it were killed.
    DieBefore,
    /// The process ends in the middle of it: half of the bytes are written, one of a folder's files is removed.
    DieHalfway,
    /// The process ends after it.
    DieAfter,
}

/// Which operations fail, of those on paths below a folder.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The folder.
    pub below: PathBuf,
    /// Numbers of operations, counted from 0, and what happens there.
    pub faults: Vec<(usize, Fault)>,
}

/// What an operation has to do.
#[derive(Debug)]
pub(crate) enum Verdict {
    Go,
    GoThenDie,
    HalfwayThenDie,
    Fail(io::Error),
    HalfwayThenFail(io::Error),
}

#[derive(Debug)]
struct Active {
    id: usize,
    plan: Plan,
    /// What else happens: at which operation by its name, the how many-th of them from 0.
    named: Option<(String, usize, Fault)>,
    points: Vec<String>,
}

/// How many plans are in force: the only thing that is looked at without one.
static IN_FORCE: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static PLANS: Mutex<Vec<Active>> = Mutex::new(Vec::new());

fn plans() -> MutexGuard<'static, Vec<Active>> {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A plan in force, until it is dropped.
#[derive(Debug)]
pub struct Installed {
    id: usize,
}

/// Puts a plan into force, in the whole process.
pub fn install(plan: Plan) -> Installed {
    put(plan, None)
}

/// Has a fault happen below a folder at the `nth` operation, from 0, of those called `name`: threads may order
/// operations of different names differently each time.
pub fn install_at(below: PathBuf, name: &str, nth: usize, fault: Fault) -> Installed {
    put(Plan { below, faults: Vec::new() }, Some((name.to_owned(), nth, fault)))
}

fn put(plan: Plan, named: Option<(String, usize, Fault)>) -> Installed {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    plans().push(Active { id, plan, named, points: Vec::new() });
    IN_FORCE.fetch_add(1, Ordering::SeqCst);
    Installed { id }
}

impl Installed {
    /// The operations so far, in order: `area/operation`.
    pub fn points(&self) -> Vec<String> {
        plans().iter().find(|active| active.id == self.id).map(|a| a.points.clone()).unwrap_or_default()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        IN_FORCE.fetch_sub(1, Ordering::SeqCst);
        plans().retain(|active| active.id != self.id);
    }
}

/// Counts an operation and says what is to become of it.
pub(crate) fn reached(area: &str, operation: &str, path: &Path) -> Verdict {
    if IN_FORCE.load(Ordering::Relaxed) == 0 {
        return Verdict::Go;
    }
    let mut plans = plans();
    let Some(active) = plans.iter_mut().find(|active| path.starts_with(&active.plan.below)) else {
        return Verdict::Go;
    };
    let number = active.points.len();
    let name = format!("{area}/{operation}");
    let numbered = active.plan.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
    let same = active.points.iter().filter(|point| **point == name).count();
    let named = active.named.as_ref().filter(|(at, nth, _)| (at, *nth) == (&name, same));
    let fault = numbered.or(named.map(|(_, _, fault)| *fault));
    active.points.push(name);
    drop(plans);
    match fault {
        None => Verdict::Go,
        Some(Fault::Full) => Verdict::Fail(io::ErrorKind::StorageFull.into()),
        Some(Fault::Short) => Verdict::HalfwayThenFail(io::ErrorKind::StorageFull.into()),
        Some(Fault::Device) => Verdict::Fail(io::Error::other("input/output error")),
        Some(Fault::DieBefore) => std::process::abort(),
        Some(Fault::DieHalfway) => Verdict::HalfwayThenDie,
        Some(Fault::DieAfter) => Verdict::GoThenDie,
    }
}

/// Where tests make folders that are synced thousands of times: in memory, where the machine has that.
pub fn quick_parent() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// A folder for tests that sync thousands of times.
#[cfg(test)]
pub(crate) fn quick_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(quick_parent()).expect("a folder for a test")
}
