use std::collections::BTreeMap;

use rloom_core::Ticket;

use crate::CutOrder;
use crate::groups::Held;
use crate::table::Table;

/// Which ready groups make the next batch, kept from event to event.
#[derive(Debug, Clone)]
pub(crate) enum ReadyOrder {
    /// The lowest tickets, none of which may still run.
    Ticket {
        /// The lowest ticket that runs.
        frontier: Option<Ticket>,
        /// How many ready ones are below it.
        ready_below: usize,
    },
    /// The first that became ready, by their places.
    Completion(BTreeMap<u64, Ticket>),
}

impl ReadyOrder {
    pub(crate) fn new(order: CutOrder, held: &Table) -> Self {
        match order {
            CutOrder::Ticket => {
                let mut order = Self::Ticket { frontier: None, ready_below: 0 };
                order.walk(held.iter());
                order
            }
            CutOrder::Completion => Self::Completion(
                held.iter()
                    .filter_map(|(ticket, held)| match held {
                        Held::Ready { place, .. } => Some((place, ticket)),
                        Held::Running { .. } => None,
                    })
                    .collect(),
            ),
        }
    }

    /// A group began to run. In ticket order it has the highest ticket of all.
    pub(crate) fn started(&mut self, ticket: Ticket) {
        if let Self::Ticket { frontier, .. } = self {
            frontier.get_or_insert(ticket);
        }
    }

    /// A running group became ready.
    pub(crate) fn completed(&mut self, ticket: Ticket, place: u64, held: &Table) {
        match self {
            Self::Ticket { frontier, .. } if *frontier == Some(ticket) => self.walk(held.range_from(ticket)),
            Self::Ticket { .. } => {}
            Self::Completion(places) => {
                places.insert(place, ticket);
            }
        }
    }

    /// A running group went; `held` no longer has it.
    pub(crate) fn cancelled(&mut self, ticket: Ticket, held: &Table) {
        if let Self::Ticket { frontier, .. } = self
            && *frontier == Some(ticket)
        {
            self.walk(held.range_from(ticket));
        }
    }

    /// A ready group went.
    pub(crate) fn withdrawn(&mut self, ticket: Ticket, place: u64) {
        match self {
            Self::Ticket { frontier, ready_below } => {
                *ready_below -= usize::from(frontier.is_none_or(|f| ticket < f));
            }
            Self::Completion(places) => {
                places.remove(&place);
            }
        }
    }

    /// The tickets of the next batch, in training order; they are no longer in the order, but still in `held`.
    pub(crate) fn take(&mut self, size: usize, held: &Table) -> Option<Vec<Ticket>> {
        match self {
            Self::Ticket { ready_below, .. } => (*ready_below >= size).then(|| {
                *ready_below -= size;
                held.iter().take(size).map(|(ticket, _)| ticket).collect()
            }),
            Self::Completion(places) => (places.len() >= size)
                .then(|| std::iter::from_fn(|| places.pop_first()).take(size).map(|(_, t)| t).collect()),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Ticket { frontier, ready_below } => (*frontier, *ready_below) = (None, 0),
            Self::Completion(places) => places.clear(),
        }
    }

    /// Moves the frontier up over ready groups, to the first that runs. Each group is passed once in its life, so all
    /// walks together cost no more than the groups do.
    fn walk(&mut self, groups: impl Iterator<Item = (Ticket, Held)>) {
        let Self::Ticket { frontier, ready_below } = self else { return };
        *frontier = None;
        for (ticket, held) in groups {
            match held {
                Held::Ready { .. } => *ready_below += 1,
                Held::Running { .. } => {
                    *frontier = Some(ticket);
                    return;
                }
            }
        }
    }
}
