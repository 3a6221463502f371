use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rloom_core::metric;

/// Numbers of episodes since the last report.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    episodes: u64,
    calls: u64,
    segments: u64,
    seconds: f64,
    failed: u64,
    expired: u64,
    /// Sum and number of the rewards of each name.
    rewards: BTreeMap<String, (f64, u64)>,
}

impl Counters {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a complete episode.
    pub(crate) fn completed<'a>(
        &self,
        calls: u64,
        segments: usize,
        time: Duration,
        rewards: impl Iterator<Item = (&'a str, f64)>,
    ) {
        let mut numbers = self.numbers();
        numbers.episodes += 1;
        numbers.calls += calls;
        numbers.segments += segments as u64;
        numbers.seconds += time.as_secs_f64();
        let mut own: BTreeMap<&str, f64> = BTreeMap::new();
        for (name, value) in rewards {
            *own.entry(name).or_default() += value;
        }
        for (name, value) in own {
            let (sum, episodes) = numbers.rewards.entry(name.to_owned()).or_default();
            (*sum, *episodes) = (*sum + value, *episodes + 1);
        }
    }

    /// Counts an attempt that failed.
    pub(crate) fn failed(&self) {
        self.numbers().failed += 1;
    }

    /// Counts a lease that ended without a result.
    pub(crate) fn expired(&self) {
        self.numbers().expired += 1;
    }

    /// The metrics since the last call.
    pub(crate) fn take(&self) -> BTreeMap<String, f64> {
        let Numbers { episodes, calls, segments, seconds, failed, expired, rewards } =
            std::mem::take(&mut *self.numbers());
        let mut metrics = BTreeMap::from([
            (metric::SESSION_EPISODES.to_owned(), episodes as f64),
            (metric::SESSION_FAILED.to_owned(), failed as f64),
            (metric::SESSION_EXPIRED.to_owned(), expired as f64),
        ]);
        if episodes > 0 {
            let mean = |sum: f64| sum / episodes as f64;
            metrics.insert(metric::SESSION_CALLS.to_owned(), mean(calls as f64));
            metrics.insert(metric::SESSION_SEGMENTS.to_owned(), mean(segments as f64));
            metrics.insert(metric::SESSION_SECONDS.to_owned(), mean(seconds));
        }
        for (name, (sum, episodes)) in rewards {
            metrics.insert(format!("{}{name}", metric::SESSION_REWARD_PREFIX), sum / episodes as f64);
        }
        metrics
    }
}
