use std::collections::BTreeSet;

use rloom_core::{PolicyVersion, Ticket};

use crate::ages::Ages;
use crate::order::ReadyOrder;
use crate::state::{AliveGroup, Progress};
use crate::table::Table;
use crate::{CutOrder, SchedulerState};

/// A group that holds a place: it runs or is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Running { started: PolicyVersion },
    Ready { oldest: PolicyVersion, place: u64 },
}

impl Held {
    /// No policy token of the group is older.
    fn oldest(self) -> PolicyVersion {
        match self {
            Self::Running { started } => started,
            Self::Ready { oldest, .. } => oldest,
        }
    }
}

/// The groups that have not ended and are in no batch, with an index for each question that is asked of them, so that
/// no event looks at all of them.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    held: Table,
    running: usize,
    /// Those held, oldest version first.
    by_age: Ages,
    order: ReadyOrder,
    put_off: BTreeSet<Ticket>,
}

impl Groups {
    pub(crate) fn restore(state: &SchedulerState, order: CutOrder) -> Self {
        let mut held = Table::default();
        let mut put_off = BTreeSet::new();
        for group in &state.alive {
            match group.progress {
                Progress::Running { started } => {
                    held.insert(group.ticket, Held::Running { started });
                }
                Progress::Ready { oldest, place } => {
                    held.insert(group.ticket, Held::Ready { oldest, place });
                }
                Progress::PutOff => {
                    put_off.insert(group.ticket);
                }
            }
        }
        let running = held.iter().filter(|(_, h)| matches!(h, Held::Running { .. })).count();
        let mut by_age = Ages::default();
        for (ticket, held) in held.iter() {
            by_age.insert(held.oldest(), ticket);
        }
        let order = ReadyOrder::new(order, &held);
        Self { held, running, by_age, order, put_off }
    }

    /// Every group, by ticket.
    pub(crate) fn alive(&self) -> Vec<AliveGroup> {
        let held = self.held.iter().map(|(ticket, held)| {
            let progress = match held {
                Held::Running { started } => Progress::Running { started },
                Held::Ready { oldest, place } => Progress::Ready { oldest, place },
            };
            AliveGroup { ticket, progress }
        });
        let put_off = self.put_off.iter().map(|&ticket| AliveGroup { ticket, progress: Progress::PutOff });
        let mut alive: Vec<AliveGroup> = held.chain(put_off).collect();
        alive.sort_unstable_by_key(|g| g.ticket);
        alive
    }

    /// Groups that run or are ready.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn ready(&self) -> usize {
        self.held.len() - self.running
    }

    pub(crate) fn put_off(&self) -> usize {
        self.put_off.len()
    }

    /// The running groups, by ticket.
    pub(crate) fn running_tickets(&self) -> impl Iterator<Item = Ticket> {
        self.held.iter().filter(|(_, h)| matches!(h, Held::Running { .. })).map(|(ticket, _)| ticket)
    }

    /// The version under which a running group started.
    pub(crate) fn started(&self, ticket: Ticket) -> Option<PolicyVersion> {
        match self.held.get(ticket) {
            Some(Held::Running { started }) => Some(started),
            _ => None,
        }
    }

    /// The group with the oldest version.
    pub(crate) fn oldest(&self) -> Option<(PolicyVersion, Ticket)> {
        self.by_age.first()
    }

    /// A group begins to run.
    pub(crate) fn start(&mut self, ticket: Ticket, version: PolicyVersion) {
        self.held.insert(ticket, Held::Running { started: version });
        self.running += 1;
        self.by_age.insert(version, ticket);
        self.order.started(ticket);
    }

    /// A running group becomes ready. False when it does not run.
    pub(crate) fn complete(&mut self, ticket: Ticket, oldest: PolicyVersion, place: u64) -> bool {
        let Some(held) = self.held.get_mut(ticket) else { return false };
        let Held::Running { started } = *held else { return false };
        *held = Held::Ready { oldest, place };
        self.running -= 1;
        if oldest != started {
            self.by_age.remove(started, ticket);
            self.by_age.insert(oldest, ticket);
        }
        self.order.completed(ticket, place, &self.held);
        true
    }

    /// A group that is held goes.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let held = self.held.remove(ticket)?;
        self.by_age.remove(held.oldest(), ticket);
        match held {
            Held::Running { .. } => {
                self.running -= 1;
                self.order.cancelled(ticket, &self.held);
            }
            Held::Ready { place, .. } => self.order.withdrawn(ticket, place),
        }
        Some(held)
    }

    /// Takes a batch out, if there is one.
    pub(crate) fn take_batch(&mut self, size: usize) -> Option<Vec<Ticket>> {
        let tickets = self.order.take(size, &self.held)?;
        for ticket in &tickets {
            if let Some(held) = self.held.remove(*ticket) {
                self.by_age.remove(held.oldest(), *ticket);
            }
        }
        Some(tickets)
    }

    /// Keeps the ticket of a group that was removed, to start it again.
    pub(crate) fn keep_for_later(&mut self, ticket: Ticket) {
        self.put_off.insert(ticket);
    }

    /// The lowest ticket that was put off.
    pub(crate) fn take_put_off(&mut self) -> Option<Ticket> {
        self.put_off.pop_first()
    }

    /// Takes every group out, by ticket.
    pub(crate) fn clear(&mut self) -> Vec<Ticket> {
        let tickets = self.alive().into_iter().map(|g| g.ticket).collect();
        self.held.clear();
        self.by_age.clear();
        self.put_off.clear();
        self.running = 0;
        self.order.clear();
        tickets
    }
}
