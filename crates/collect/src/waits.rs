//! Waits of episodes in flight, read for the report of a stalled run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_core::SampleKey;
use rloom_reward::CurrentComponent;

/// Resource that an episode waits for.
#[derive(Debug, Clone)]
pub(crate) enum WaitTarget {
    /// The environment.
    Environment,
    /// An agent outside of this program.
    Agent,
    /// A place among the requests that are submitted to the rollout engine: their number is bounded.
    Place,
    /// The rollout engine.
    Engine,
    /// A free reward slot: the number of rewards computed at once is bounded.
    RewardSlot,
    /// The reward component that is running.
    Reward(Arc<CurrentComponent>),
}

#[derive(Debug)]
struct Wait {
    key: SampleKey,
    target: WaitTarget,
    since: Instant,
}

/// Waits of the episodes in flight, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<WaitTable>);

#[derive(Debug, Default)]
struct WaitTable {
    started: u64,
    waits: BTreeMap<u64, Wait>,
}

/// A wait; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitGuard<'w> {
    waits: &'w Waits,
    number: u64,
}

impl Waits {
    fn table(&self) -> MutexGuard<'_, WaitTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an episode starts to wait.
    pub(crate) fn start(&self, key: SampleKey, target: WaitTarget) -> WaitGuard<'_> {
        let mut table = self.table();
        table.started += 1;
        let number = table.started;
        table.waits.insert(number, Wait { key, target, since: Instant::now() });
        WaitGuard { waits: self, number }
    }

    /// Returns at most `limit` of the longest waits of the episodes that `filter` accepts.
    pub(crate) fn longest(
        &self,
        limit: usize,
        filter: impl Fn(SampleKey) -> bool,
    ) -> Vec<(SampleKey, WaitTarget, Duration)> {
        let table = self.table();
        let selected = table.waits.values().filter(|wait| filter(wait.key)).take(limit);
        selected.map(|wait| (wait.key, wait.target.clone(), wait.since.elapsed())).collect()
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waits.table().waits.remove(&self.number);
    }
}
