//! SCHED-7 with [`Stragglers::Wait`](crate::Stragglers::Wait): batches that leave no group behind.

use rloom_core::Ticket;

use crate::groups::HeldGroup;

/// Groups and batches from which the next one is chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    /// Number of the batch to be cut.
    pub(crate) batch: u64,
    /// Groups per batch.
    pub(crate) size: usize,
    pub(crate) max_staleness: u64,
}

impl Deadlines {
    /// Returns the tickets of the next batch by completion; `None` while it has to wait for a group.
    ///
    /// A group whose oldest version is `o` can be trained until batch `o + η`. The groups that must be trained within the
    /// next `j + 1` batches need `j` of them at most for all but the first: the others are due now, and come before groups
    /// that were ready earlier. Without over-sampling that is at most one batch (SCHED-1).
    pub(crate) fn choose(self, held: impl Iterator<Item = (Ticket, HeldGroup)>) -> Option<Vec<Ticket>> {
        let Self { batch, size, max_staleness } = self;
        let levels = usize::try_from(max_staleness).unwrap_or(usize::MAX).saturating_add(1);
        let mut counts: Vec<usize> = Vec::new();
        // Ready groups: completion index, number of batches that can follow before theirs, ticket.
        let mut ready: Vec<(u64, usize, Ticket)> = Vec::new();
        for (ticket, held) in held {
            let left = (held.oldest().0 + max_staleness).saturating_sub(batch);
            let level = usize::try_from(left).unwrap_or(usize::MAX).min(levels - 1);
            counts.resize(counts.len().max(level + 1), 0);
            counts[level] += 1;
            if let HeldGroup::Ready { completion_index, .. } = held {
                ready.push((completion_index, level, ticket));
            }
        }
        if ready.len() < size {
            return None;
        }
        ready.sort_unstable();
        let mut chosen = Vec::with_capacity(size);
        let mut within = 0;
        for (level, count) in counts.into_iter().enumerate() {
            within += count;
            let due = within.saturating_sub(level.saturating_mul(size)).min(size);
            while chosen.len() < due {
                let place = ready.iter().position(|(_, own, _)| *own <= level)?;
                chosen.push(ready.remove(place));
            }
        }
        let others = size - chosen.len();
        chosen.extend(ready.drain(..others));
        chosen.sort_unstable();
        Some(chosen.into_iter().map(|(_, _, ticket)| ticket).collect())
    }
}
