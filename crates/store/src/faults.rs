//! Injected disk faults and process deaths, for tests.
//!
//! A test first runs with an empty [`FaultPlan`] and reads the [`operations`](ActivePlan::operations) that were
//! performed, then runs once more for each of them with a fault there. A plan applies to paths in one folder, so
//! concurrent tests do not affect each other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A fault at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with "no space left"; nothing is done.
    DiskFull,
    /// Fails with "no space left" after half of a write.
    ShortWrite,
    /// Fails with a device error; nothing is done.
    DeviceError,
    /// Aborts the process before the operation.
    AbortBefore,
    /// Aborts the process during the operation: half of the bytes are written, one file of a folder is removed.
    AbortDuring,
    /// Aborts the process after the operation.
    AbortAfter,
}

/// Faults at operations on paths in a folder.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// The folder.
    pub folder: PathBuf,
    /// Indices of operations, from 0, and the fault at each.
    pub faults: Vec<(usize, Fault)>,
}

/// Instruction for an operation.
#[derive(Debug)]
pub(crate) enum Outcome {
    Run,
    RunThenAbort,
    RunPartlyThenAbort,
    Fail(io::Error),
    RunPartlyThenFail(io::Error),
}

/// A fault at the n-th operation of a name.
#[derive(Debug)]
struct NamedFault {
    name: String,
    nth: usize,
    fault: Fault,
}

#[derive(Debug)]
struct Installed {
    id: usize,
    plan: FaultPlan,
    named: Option<NamedFault>,
    operations: Vec<String>,
}

/// Number of installed plans. Without any, an operation costs one atomic load.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
static PLANS: Mutex<Vec<Installed>> = Mutex::new(Vec::new());

fn plans() -> MutexGuard<'static, Vec<Installed>> {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An installed plan, active until it is dropped.
#[derive(Debug)]
pub struct ActivePlan {
    id: usize,
}

/// Installs a plan for the whole process.
pub fn install(plan: FaultPlan) -> ActivePlan {
    add(plan, None)
}

/// Installs a fault in a folder at the `nth` operation, from 0, of those called `name`. Threads may order operations
/// of different names differently in each run, so an index over all operations would not be stable.
pub fn install_at(folder: PathBuf, name: &str, nth: usize, fault: Fault) -> ActivePlan {
    let plan = FaultPlan { folder, faults: Vec::new() };
    add(plan, Some(NamedFault { name: name.to_owned(), nth, fault }))
}

fn add(plan: FaultPlan, named: Option<NamedFault>) -> ActivePlan {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    plans().push(Installed { id, plan, named, operations: Vec::new() });
    ACTIVE.fetch_add(1, Ordering::SeqCst);
    ActivePlan { id }
}

impl ActivePlan {
    /// The operations performed so far, in order, as `area/operation`.
    pub fn operations(&self) -> Vec<String> {
        plans().iter().find(|plan| plan.id == self.id).map(|plan| plan.operations.clone()).unwrap_or_default()
    }
}

impl Drop for ActivePlan {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
        plans().retain(|plan| plan.id != self.id);
    }
}

/// Records an operation and returns its instruction.
pub(crate) fn outcome(area: &str, operation: &str, path: &Path) -> Outcome {
    if ACTIVE.load(Ordering::Relaxed) == 0 {
        return Outcome::Run;
    }
    let mut plans = plans();
    let Some(installed) = plans.iter_mut().find(|installed| path.starts_with(&installed.plan.folder)) else {
        return Outcome::Run;
    };
    let index = installed.operations.len();
    let name = format!("{area}/{operation}");
    let by_index = installed.plan.faults.iter().find(|(at, _)| *at == index).map(|(_, fault)| *fault);
    let nth = installed.operations.iter().filter(|operation| **operation == name).count();
    let by_name = installed.named.as_ref().filter(|named| named.name == name && named.nth == nth);
    let fault = by_index.or(by_name.map(|named| named.fault));
    installed.operations.push(name);
    drop(plans);
    match fault {
        None => Outcome::Run,
        Some(Fault::DiskFull) => Outcome::Fail(io::ErrorKind::StorageFull.into()),
        Some(Fault::ShortWrite) => Outcome::RunPartlyThenFail(io::ErrorKind::StorageFull.into()),
        Some(Fault::DeviceError) => Outcome::Fail(io::Error::other("input/output error")),
        Some(Fault::AbortBefore) => std::process::abort(),
        Some(Fault::AbortDuring) => Outcome::RunPartlyThenAbort,
        Some(Fault::AbortAfter) => Outcome::RunThenAbort,
    }
}

/// A parent for the folders of tests that sync thousands of times: in memory where possible.
pub fn fast_parent() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// A temporary folder in [`fast_parent`].
#[cfg(test)]
pub(crate) fn fast_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(fast_parent()).expect("a temporary folder")
}
