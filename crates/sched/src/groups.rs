use std::collections::BTreeSet;

use rloom_core::{PolicyVersion, Ticket};

use crate::ages::Ages;
use crate::order::ReadyOrder;
use crate::quota::Quotas;
use crate::state::{GroupStatus, OpenGroup};
use crate::table::Table;
use crate::wait::Deadlines;
use crate::{CutOrder, SchedulerState};

/// A group that holds a slot: running or ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldGroup {
    Running { started: PolicyVersion },
    Ready { oldest: PolicyVersion, completion_index: u64 },
}

impl HeldGroup {
    /// Lower bound of the versions of the group's policy tokens.
    pub(crate) fn oldest(self) -> PolicyVersion {
        match self {
            Self::Running { started } => started,
            Self::Ready { oldest, .. } => oldest,
        }
    }
}

/// The open groups, indexed for each query so that no event scans all of them.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    held: Table,
    running: usize,
    /// Held groups by their oldest version.
    by_age: Ages,
    order: ReadyOrder,
    deferred: BTreeSet<Ticket>,
}

impl Groups {
    pub(crate) fn restore(state: &SchedulerState, order: CutOrder) -> Self {
        let mut held = Table::default();
        let mut deferred = BTreeSet::new();
        for group in &state.open_groups {
            match group.status {
                GroupStatus::Running { started } => {
                    held.insert(group.ticket, HeldGroup::Running { started });
                }
                GroupStatus::Ready { oldest, completion_index } => {
                    held.insert(group.ticket, HeldGroup::Ready { oldest, completion_index });
                }
                GroupStatus::Deferred => {
                    deferred.insert(group.ticket);
                }
            }
        }
        let running = held.iter().filter(|(_, h)| matches!(h, HeldGroup::Running { .. })).count();
        let mut by_age = Ages::default();
        for (ticket, held) in held.iter() {
            by_age.insert(held.oldest(), ticket);
        }
        let order = ReadyOrder::new(order, &held, state.quotas.as_ref());
        Self { held, running, by_age, order, deferred }
    }

    /// All open groups, by ticket.
    pub(crate) fn open_groups(&self) -> Vec<OpenGroup> {
        let held = self.held.iter().map(|(ticket, held)| {
            let status = match held {
                HeldGroup::Running { started } => GroupStatus::Running { started },
                HeldGroup::Ready { oldest, completion_index } => {
                    GroupStatus::Ready { oldest, completion_index }
                }
            };
            OpenGroup { ticket, status }
        });
        let deferred =
            self.deferred.iter().map(|&ticket| OpenGroup { ticket, status: GroupStatus::Deferred });
        let mut groups: Vec<OpenGroup> = held.chain(deferred).collect();
        groups.sort_unstable_by_key(|g| g.ticket);
        groups
    }

    /// The quotas of domains, if there are any.
    pub(crate) fn quotas(&self) -> Option<&Quotas> {
        self.order.quotas()
    }

    /// The quotas of domains, if there are any.
    pub(crate) fn quotas_mut(&mut self) -> Option<&mut Quotas> {
        self.order.quotas_mut()
    }

    /// Number of groups running or ready.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn ready(&self) -> usize {
        self.held.len() - self.running
    }

    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Tickets of the running groups, ascending.
    pub(crate) fn running_tickets(&self) -> impl Iterator<Item = Ticket> {
        self.held.iter().filter(|(_, h)| matches!(h, HeldGroup::Running { .. })).map(|(ticket, _)| ticket)
    }

    /// The version that a running group started with.
    pub(crate) fn started(&self, ticket: Ticket) -> Option<PolicyVersion> {
        match self.held.get(ticket) {
            Some(HeldGroup::Running { started }) => Some(started),
            _ => None,
        }
    }

    /// The held group with the oldest version.
    pub(crate) fn oldest(&self) -> Option<(PolicyVersion, Ticket)> {
        self.by_age.first()
    }

    /// Adds a running group.
    pub(crate) fn start(&mut self, ticket: Ticket, version: PolicyVersion) {
        self.held.insert(ticket, HeldGroup::Running { started: version });
        self.running += 1;
        self.by_age.insert(version, ticket);
        self.order.started(ticket);
    }

    /// Makes a running group ready. Returns false if it is not running.
    pub(crate) fn complete(&mut self, ticket: Ticket, oldest: PolicyVersion, completion_index: u64) -> bool {
        let Some(held) = self.held.get_mut(ticket) else { return false };
        let HeldGroup::Running { started } = *held else { return false };
        *held = HeldGroup::Ready { oldest, completion_index };
        self.running -= 1;
        if oldest != started {
            self.by_age.remove(started, ticket);
            self.by_age.insert(oldest, ticket);
        }
        self.order.completed(ticket, completion_index, &self.held);
        true
    }

    /// Removes a held group.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<HeldGroup> {
        let held = self.held.remove(ticket)?;
        self.by_age.remove(held.oldest(), ticket);
        match held {
            HeldGroup::Running { .. } => {
                self.running -= 1;
                self.order.running_removed(ticket, &self.held);
            }
            HeldGroup::Ready { completion_index, .. } => self.order.ready_removed(ticket, completion_index),
        }
        Some(held)
    }

    /// Removes and returns the next batch, if enough groups are ready. With `deadlines` it has to
    /// contain those that are due. `note_age` receives the oldest version of each group.
    pub(crate) fn take_batch(
        &mut self,
        size: usize,
        deadlines: Option<Deadlines>,
        mut note_age: impl FnMut(Ticket, PolicyVersion),
    ) -> Option<Vec<Ticket>> {
        let tickets = match deadlines {
            Some(deadlines) if self.ready() >= size => {
                let tickets = deadlines.choose(self.held.iter())?;
                for &ticket in &tickets {
                    self.order.forget_ready(ticket, &self.held);
                }
                tickets
            }
            Some(_) => return None,
            None => self.order.take(size, &self.held)?,
        };
        for ticket in &tickets {
            if let Some(held) = self.held.remove(*ticket) {
                note_age(*ticket, held.oldest());
                self.by_age.remove(held.oldest(), *ticket);
            }
        }
        Some(tickets)
    }

    /// Adds the ticket of a removed group to the deferred ones.
    pub(crate) fn defer(&mut self, ticket: Ticket) {
        self.deferred.insert(ticket);
    }

    /// Removes and returns the lowest deferred ticket.
    pub(crate) fn take_deferred(&mut self) -> Option<Ticket> {
        self.deferred.pop_first()
    }

    /// Removes every group and returns their tickets, ascending.
    pub(crate) fn clear(&mut self) -> Vec<Ticket> {
        let tickets = self.open_groups().into_iter().map(|g| g.ticket).collect();
        self.held.clear();
        self.by_age.clear();
        self.deferred.clear();
        self.running = 0;
        self.order.clear();
        tickets
    }
}
