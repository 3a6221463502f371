use std::collections::BTreeMap;

use rloom_core::{PolicyVersion, Ticket};

/// Set of (oldest version, ticket) pairs in ascending order. An entry stores 64 neighbouring tickets of one version as
/// bits. Groups start in ticket order, so most entries are full and the map stays small enough for the processor's cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ages(BTreeMap<(PolicyVersion, u64), u64>);

impl Ages {
    pub(crate) fn insert(&mut self, version: PolicyVersion, ticket: Ticket) {
        let (row, bit) = position(ticket);
        *self.0.entry((version, row)).or_default() |= bit;
    }

    pub(crate) fn remove(&mut self, version: PolicyVersion, ticket: Ticket) {
        let (row, bit) = position(ticket);
        if let Some(bits) = self.0.get_mut(&(version, row)) {
            *bits &= !bit;
            if *bits == 0 {
                self.0.remove(&(version, row));
            }
        }
    }

    /// Returns the group with the oldest version, the lowest ticket first.
    pub(crate) fn first(&self) -> Option<(PolicyVersion, Ticket)> {
        let (&(version, row), bits) = self.0.first_key_value()?;
        Some((version, Ticket(row * 64 + u64::from(bits.trailing_zeros()))))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn position(ticket: Ticket) -> (u64, u64) {
    (ticket.0 / 64, 1 << (ticket.0 % 64))
}
