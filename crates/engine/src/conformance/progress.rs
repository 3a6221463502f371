//! Progress reports of a training engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Verdict, require};
use crate::{ProgressObserver, TrainProgress, TrainWork};

/// Records the reports of an engine.
#[derive(Debug, Default)]
pub(super) struct Reports(Arc<Mutex<Vec<TrainProgress>>>);

impl Reports {
    fn list(&self) -> MutexGuard<'_, Vec<TrainProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An observer that records here.
    pub(super) fn observer(&self) -> ProgressObserver {
        let list = Self(Arc::clone(&self.0));
        ProgressObserver::new(move |progress| list.list().push(progress))
    }

    /// True if nothing was reported.
    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Checks the reports of a call on `units` units of `work`, of which at most `at_once` are completed between two
    /// reports. Forgets them.
    pub(super) fn check(&self, call: &str, work: TrainWork, units: usize, at_once: u64) -> Verdict {
        let all = std::mem::take(&mut *self.list());
        let own: Vec<&TrainProgress> = all.iter().filter(|progress| progress.work == work).collect();
        let ends = (own.first().map(|first| first.done), own.last().map(|last| last.done));
        let units = units as u64;
        require(
            ends == (Some(0), Some(units)) && own.iter().all(|progress| progress.total == units),
            || format!("{call} of {units} units does not report progress from 0 to {units}: {own:?}"),
        )?;
        let is_gradual = |pair: &[&TrainProgress]| {
            pair[1].done.checked_sub(pair[0].done).is_some_and(|completed| completed <= at_once)
        };
        require(own.windows(2).all(is_gradual), || {
            format!("{call} does not report each of {units} units: {own:?}")
        })
    }
}
