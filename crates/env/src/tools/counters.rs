use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rloom_core::metric;

/// Numbers of calls since the last report.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<BTreeMap<String, u64>>);

impl Counters {
    /// Counts a call that ran.
    pub(super) fn ran(&self, tool: &str, has_failed: bool) {
        self.add(metric::TOOL_CALLS);
        self.add(&format!("{}{tool}", metric::TOOL_CALLS_PREFIX));
        if has_failed {
            self.add(metric::TOOL_FAILURES);
        }
    }

    /// Counts an attempt that is no call.
    pub(super) fn malformed(&self, status: &str) {
        self.add(metric::TOOL_MALFORMED);
        self.add(&format!("{}{status}", metric::TOOL_MALFORMED_PREFIX));
    }

    /// Counts a call over the limits.
    pub(super) fn refused(&self) {
        self.add(metric::TOOL_REFUSED);
    }

    fn add(&self, name: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name.to_owned()).or_default() += 1;
    }

    /// The numbers, which begin again at 0.
    pub(super) fn take(&self) -> BTreeMap<String, f64> {
        let counts = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut metrics: BTreeMap<String, f64> =
            counts.into_iter().map(|(name, count)| (name, count as f64)).collect();
        for name in [metric::TOOL_CALLS, metric::TOOL_MALFORMED, metric::TOOL_FAILURES, metric::TOOL_REFUSED]
        {
            metrics.entry(name.to_owned()).or_insert(0.0);
        }
        metrics
    }
}
