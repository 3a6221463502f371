//! Whom each episode under way waits for: read when nothing happens any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_core::SampleKey;
use rloom_reward::CurrentComponent;

/// Whom an episode waits for.
#[derive(Debug, Clone)]
pub(crate) enum Whom {
    Environment,
    Engine,
    /// For others to be judged: so many rewards are computed at once.
    Place,
    /// For the component of the reward that is at work.
    Reward(Arc<CurrentComponent>),
}

#[derive(Debug)]
struct Wait {
    key: SampleKey,
    whom: Whom,
    since: Instant,
}

/// The episodes that wait.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    begun: u64,
    waits: BTreeMap<u64, Wait>,
}

/// A wait, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'w> {
    waits: &'w Waits,
    number: u64,
}

impl Waits {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, key: SampleKey, whom: Whom) -> Waiting<'_> {
        let mut book = self.book();
        book.begun += 1;
        let number = book.begun;
        book.waits.insert(number, Wait { key, whom, since: Instant::now() });
        Waiting { waits: self, number }
    }

    /// The longest waits of those that are asked for: of which episode, for whom, for how long.
    pub(crate) fn longest(
        &self,
        most: usize,
        of: impl Fn(SampleKey) -> bool,
    ) -> Vec<(SampleKey, Whom, Duration)> {
        let book = self.book();
        let asked = book.waits.values().filter(|wait| of(wait.key)).take(most);
        asked.map(|wait| (wait.key, wait.whom.clone(), wait.since.elapsed())).collect()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waits.book().waits.remove(&self.number);
    }
}
