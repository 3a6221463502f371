//! The policy versions that a replica has generated with.

use std::collections::VecDeque;

/// Shortest history that is pruned.
const MIN_PRUNED: usize = 8;

/// Versions with the clock from which the replica generates with each.
#[derive(Debug)]
pub(crate) struct VersionHistory {
    starts: VecDeque<(f64, u64)>,
    /// Length at which it is pruned next.
    prune_at: usize,
}

impl VersionHistory {
    /// A history of the initial weights, version 0.
    pub(crate) fn new() -> Self {
        Self { starts: VecDeque::from([(0.0, 0)]), prune_at: 0 }
    }

    /// Keeps only the current version.
    pub(crate) fn keep_current(&mut self) {
        if self.starts.len() > 1 {
            self.starts.drain(..self.starts.len() - 1);
        }
    }

    /// Records that the replica generates with `version` from now on.
    pub(crate) fn push(&mut self, clock: f64, version: u64) {
        if self.starts.back().is_some_and(|last| last.0 >= clock) {
            // Nothing was generated with that version.
            self.starts.pop_back();
        }
        self.starts.push_back((clock, version));
    }

    /// True if it has grown enough for [`prune`](Self::prune).
    pub(crate) fn is_long(&self) -> bool {
        self.starts.len() > self.prune_at.max(MIN_PRUNED)
    }

    /// Drops versions that ended before the clock `first`, when the oldest running sequence started.
    pub(crate) fn prune(&mut self, first: f64) {
        while self.starts.get(1).is_some_and(|next| next.0 <= first) {
            self.starts.pop_front();
        }
        self.prune_at = 2 * self.starts.len();
    }

    /// Passes the number of tokens generated with each version between clocks `start` and `end` to `record`.
    pub(crate) fn tokens_by_version(&self, start: f64, end: f64, mut record: impl FnMut(u64, f64)) {
        let mut until = end;
        for &(from, version) in self.starts.iter().rev() {
            let begin = from.max(start);
            if until > begin {
                record(version, until - begin);
                until = begin;
            }
            if from <= start {
                return;
            }
        }
    }
}
