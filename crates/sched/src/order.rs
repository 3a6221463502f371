use std::collections::BTreeMap;

use rloom_core::Ticket;

use crate::groups::HeldGroup;
use crate::quota::Quotas;
use crate::table::Table;
use crate::{CutOrder, QuotaState};

/// Incrementally maintained choice of the ready groups that form the next batch.
#[derive(Debug, Clone)]
pub(crate) enum ReadyOrder {
    /// The lowest tickets, all of which must be ready.
    Ticket {
        /// Lowest running ticket.
        frontier: Option<Ticket>,
        /// Number of ready groups below the frontier.
        ready_below: usize,
    },
    /// The first groups to become ready, by completion index.
    Completion(BTreeMap<u64, Ticket>),
    /// The first groups of each domain, as many as the quotas demand.
    Quotas(Box<Quotas>),
}

impl ReadyOrder {
    pub(crate) fn new(order: CutOrder, held: &Table, quotas: Option<&QuotaState>) -> Self {
        if let Some(state) = quotas {
            return Self::Quotas(Box::new(Quotas::restore(state, order, held)));
        }
        match order {
            CutOrder::Ticket => {
                let mut order = Self::Ticket { frontier: None, ready_below: 0 };
                order.advance_frontier(held.iter());
                order
            }
            CutOrder::Completion => Self::Completion(
                held.iter()
                    .filter_map(|(ticket, held)| match held {
                        HeldGroup::Ready { completion_index, .. } => Some((completion_index, ticket)),
                        HeldGroup::Running { .. } => None,
                    })
                    .collect(),
            ),
        }
    }

    /// Records that a group started. In ticket order it has the highest ticket of all.
    pub(crate) fn started(&mut self, ticket: Ticket) {
        match self {
            Self::Ticket { frontier, .. } => drop(frontier.get_or_insert(ticket)),
            Self::Completion(_) => {}
            Self::Quotas(quotas) => quotas.started(ticket),
        }
    }

    /// Records that a running group became ready.
    pub(crate) fn completed(&mut self, ticket: Ticket, completion_index: u64, held: &Table) {
        match self {
            Self::Ticket { frontier, .. } if *frontier == Some(ticket) => {
                self.advance_frontier(held.range_from(ticket));
            }
            Self::Ticket { .. } => {}
            Self::Completion(ready) => {
                ready.insert(completion_index, ticket);
            }
            Self::Quotas(quotas) => quotas.completed(ticket, completion_index),
        }
    }

    /// Records that a running group was removed; `held` no longer contains it.
    pub(crate) fn running_removed(&mut self, ticket: Ticket, held: &Table) {
        match self {
            Self::Ticket { frontier, .. } if *frontier == Some(ticket) => {
                self.advance_frontier(held.range_from(ticket));
            }
            Self::Ticket { .. } | Self::Completion(_) => {}
            Self::Quotas(quotas) => quotas.running_removed(ticket),
        }
    }

    /// Records that a ready group was removed.
    pub(crate) fn ready_removed(&mut self, ticket: Ticket, completion_index: u64) {
        match self {
            Self::Ticket { frontier, ready_below } => {
                *ready_below -= usize::from(frontier.is_none_or(|f| ticket < f));
            }
            Self::Completion(ready) => {
                ready.remove(&completion_index);
            }
            Self::Quotas(quotas) => quotas.ready_removed(ticket, completion_index),
        }
    }

    /// Removes a ready group that is still in `held`.
    pub(crate) fn forget_ready(&mut self, ticket: Ticket, held: &Table) {
        if let Some(HeldGroup::Ready { completion_index, .. }) = held.get(ticket) {
            self.ready_removed(ticket, completion_index);
        }
    }

    /// Removes and returns the tickets of the next batch in training order; they are still in `held`.
    pub(crate) fn take(&mut self, size: usize, held: &Table) -> Option<Vec<Ticket>> {
        match self {
            Self::Ticket { ready_below, .. } => (*ready_below >= size).then(|| {
                *ready_below -= size;
                held.iter().take(size).map(|(ticket, _)| ticket).collect()
            }),
            Self::Completion(ready) => (ready.len() >= size)
                .then(|| std::iter::from_fn(|| ready.pop_first()).take(size).map(|(_, t)| t).collect()),
            Self::Quotas(quotas) => quotas.take(size),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Ticket { frontier, ready_below } => (*frontier, *ready_below) = (None, 0),
            Self::Completion(ready) => ready.clear(),
            Self::Quotas(quotas) => quotas.clear(),
        }
    }

    /// The quotas, if there are any.
    pub(crate) fn quotas(&self) -> Option<&Quotas> {
        if let Self::Quotas(quotas) = self { Some(quotas) } else { None }
    }

    /// The quotas, if there are any.
    pub(crate) fn quotas_mut(&mut self) -> Option<&mut Quotas> {
        if let Self::Quotas(quotas) = self { Some(quotas) } else { None }
    }

    /// Moves the frontier past ready groups to the first running one. Each group is passed at most once, so the total cost
    /// is linear in the number of groups.
    fn advance_frontier(&mut self, groups: impl Iterator<Item = (Ticket, HeldGroup)>) {
        let Self::Ticket { frontier, ready_below } = self else { return };
        *frontier = None;
        for (ticket, held) in groups {
            match held {
                HeldGroup::Ready { .. } => *ready_below += 1,
                HeldGroup::Running { .. } => {
                    *frontier = Some(ticket);
                    return;
                }
            }
        }
    }
}
