//! Activity of agents, for reports of what a run waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rloom_core::SampleKey;

/// Stage of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The number of agents at a time is bounded.
    Queued,
    /// No agent has leased the episode yet.
    Offered,
    /// The agent runs.
    Running,
}

#[derive(Debug)]
struct Activity {
    phase: Phase,
    calls: u64,
    /// Calls that are being sampled.
    sampling: u64,
    last: Instant,
}

/// Activity of one episode.
#[derive(Debug, Clone)]
pub(crate) struct Watch(Arc<Mutex<Activity>>);

impl Watch {
    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut activity = self.activity();
        (activity.phase, activity.calls, activity.last) = (phase, 0, Instant::now());
    }

    /// Begins a call, which ends when the guard is dropped.
    pub(crate) fn call(&self) -> CallGuard {
        let mut activity = self.activity();
        (activity.calls, activity.sampling) = (activity.calls + 1, activity.sampling + 1);
        CallGuard(self.clone())
    }

    fn describe(&self) -> String {
        let activity = self.activity();
        let calls = activity.calls;
        match (activity.phase, activity.sampling) {
            (Phase::Queued, _) => "which waits for a place among `concurrency`".to_owned(),
            (Phase::Offered, _) => "which waits for a lease".to_owned(),
            (Phase::Running, 0) => {
                format!("{calls} calls, the last {:.1} s ago", activity.last.elapsed().as_secs_f64())
            }
            (Phase::Running, sampling) => format!("{calls} calls, {sampling} of which the engine samples"),
        }
    }
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct CallGuard(Watch);

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        (activity.sampling, activity.last) = (activity.sampling.saturating_sub(1), Instant::now());
    }
}

/// Activities of the episodes in flight.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<BTreeMap<SampleKey, Watch>>);

/// An episode in flight; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    watches: &'a Watches,
    key: SampleKey,
    pub(crate) watch: Watch,
}

impl Watches {
    fn table(&self) -> MutexGuard<'_, BTreeMap<SampleKey, Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, key: SampleKey) -> Watched<'_> {
        let activity = Activity { phase: Phase::Queued, calls: 0, sampling: 0, last: Instant::now() };
        let watch = Watch(Arc::new(Mutex::new(activity)));
        self.table().insert(key, watch.clone());
        Watched { watches: self, key, watch }
    }

    pub(crate) fn describe(&self, key: SampleKey) -> Option<String> {
        let watch = self.table().get(&key).cloned()?;
        Some(watch.describe())
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.watches.table().remove(&self.key);
    }
}
