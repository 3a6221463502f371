//! The queue of samples that wait for a replica.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rloom_core::Ticket;
use rloom_sched::Priority;

use super::active_workload::Sample;

/// Samples that wait for a replica, in order of priority.
#[derive(Debug)]
pub(crate) struct ReplicaQueue {
    priority: Priority,
    /// Priority key, order of arrival, sample, stamp. Entries with an old stamp have left the queue.
    heap: BinaryHeap<Reverse<(u64, u64, u32, u32)>>,
    /// Number of samples queued so far.
    enqueued: u64,
    /// Number of samples in the queue.
    waiting: u64,
}

impl ReplicaQueue {
    pub(crate) fn new(priority: Priority) -> Self {
        Self { priority, heap: BinaryHeap::new(), enqueued: 0, waiting: 0 }
    }

    /// Number of samples in the queue.
    pub(crate) fn len(&self) -> u64 {
        self.waiting
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a sample of the group `ticket`. Changing its stamp invalidates the entry.
    pub(crate) fn push(&mut self, ticket: Ticket, id: u32, stamp: u32) {
        let key = match self.priority {
            Priority::Oldest => ticket.0,
            Priority::Arrival => 0,
        };
        self.heap.push(Reverse((key, self.enqueued, id, stamp)));
        self.enqueued += 1;
        self.waiting += 1;
    }

    /// Removes and returns the first sample.
    pub(crate) fn pop(&mut self, samples: &[Sample]) -> Option<u32> {
        while let Some(Reverse((_, _, id, stamp))) = self.heap.pop() {
            if samples[id as usize].stamp == stamp {
                self.waiting -= 1;
                return Some(id);
            }
        }
        None
    }

    /// Accounts for a cancelled sample. The caller must change its stamp.
    pub(crate) fn remove_one(&mut self) {
        self.waiting -= 1;
    }
}
