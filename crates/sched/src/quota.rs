//! SCHED-9: quotas of domains.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rloom_core::{Apportionment, Draw, Ticket};
use serde::{Deserialize, Serialize};

use crate::groups::HeldGroup;
use crate::table::Table;
use crate::{CutOrder, StateDefect};

/// State of the quotas of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaState {
    /// Domains of the slots after `slots`.
    pub sequence: Apportionment,
    /// Domain of each slot, from the next batch to be cut on.
    pub slots: VecDeque<u32>,
    /// Tickets issued for each domain.
    pub issued: Vec<u64>,
    /// Domain and place of each ticket that has not ended.
    pub draws: BTreeMap<Ticket, Draw>,
}

impl QuotaState {
    /// The quotas of a new stage.
    pub(crate) fn new(sequence: Apportionment) -> Self {
        let issued = vec![0; sequence.parties()];
        Self { sequence, slots: VecDeque::new(), issued, draws: BTreeMap::new() }
    }

    /// Rejects a state that no scheduler can have. `tickets` are those that have not ended.
    pub(crate) fn validate(&self, tickets: &BTreeSet<Ticket>) -> Result<(), StateDefect> {
        let domains = self.sequence.parties();
        let known = |domain: &u32| (*domain as usize) < domains;
        let valid = |draw: &Draw| known(&draw.domain) && draw.position < self.issued[draw.domain as usize];
        let consistent = self.sequence.is_consistent()
            && self.issued.len() == domains
            && self.slots.iter().all(known)
            && self.draws.values().all(valid)
            && self.draws.keys().eq(tickets);
        if consistent { Ok(()) } else { Err(StateDefect::Quota) }
    }
}

/// Held groups of one domain.
#[derive(Debug, Clone, Default)]
struct DomainGroups {
    running: BTreeSet<Ticket>,
    /// By ticket, or by completion index.
    ready: BTreeMap<u64, Ticket>,
}

/// Choice of the groups of the next batch by domain, and of the domains of new tickets.
#[derive(Debug, Clone)]
pub(crate) struct Quotas {
    state: QuotaState,
    order: CutOrder,
    domains: Vec<DomainGroups>,
}

impl Quotas {
    pub(crate) fn restore(state: &QuotaState, order: CutOrder, held: &Table) -> Self {
        let domains = vec![DomainGroups::default(); state.sequence.parties()];
        let mut quotas = Self { state: state.clone(), order, domains };
        for (ticket, held) in held.iter() {
            let key = quotas.key(ticket, held);
            let Some(domain) = quotas.domain_of(ticket) else { continue };
            match key {
                None => drop(domain.running.insert(ticket)),
                Some(key) => drop(domain.ready.insert(key, ticket)),
            }
        }
        quotas
    }

    pub(crate) fn state(&self) -> &QuotaState {
        &self.state
    }

    /// Domain and place of a ticket that has not ended.
    pub(crate) fn draw(&self, ticket: Ticket) -> Option<Draw> {
        self.state.draws.get(&ticket).copied()
    }

    /// Changes the quotas of slots that have no domain yet.
    pub(crate) fn set_weights(&mut self, weights: &[f64]) -> bool {
        self.state.sequence.set_weights(weights)
    }

    /// The domain of the first of the next `slots` slots for which no group is held; its ticket must be issued.
    pub(crate) fn next_domain(&mut self, slots: usize) -> Option<u32> {
        while self.state.slots.len() < slots {
            self.state.slots.push_back(self.state.sequence.turn() as u32);
        }
        let mut held: Vec<usize> =
            self.domains.iter().map(|domain| domain.running.len() + domain.ready.len()).collect();
        self.state.slots.iter().take(slots).copied().find(|&domain| {
            let held = &mut held[domain as usize];
            let is_open = *held == 0;
            *held = held.saturating_sub(1);
            is_open
        })
    }

    /// Issues a ticket for a domain.
    pub(crate) fn issue(&mut self, ticket: Ticket, domain: u32) {
        let issued = &mut self.state.issued[domain as usize];
        self.state.draws.insert(ticket, Draw { domain, position: *issued });
        *issued += 1;
    }

    /// Forgets a ticket that has ended.
    pub(crate) fn end(&mut self, ticket: Ticket) {
        self.state.draws.remove(&ticket);
    }

    pub(crate) fn started(&mut self, ticket: Ticket) {
        if let Some(domain) = self.domain_of(ticket) {
            domain.running.insert(ticket);
        }
    }

    pub(crate) fn completed(&mut self, ticket: Ticket, completion_index: u64) {
        let key = self.ready_key(ticket, completion_index);
        if let Some(domain) = self.domain_of(ticket) {
            domain.running.remove(&ticket);
            domain.ready.insert(key, ticket);
        }
    }

    pub(crate) fn running_removed(&mut self, ticket: Ticket) {
        if let Some(domain) = self.domain_of(ticket) {
            domain.running.remove(&ticket);
        }
        self.end(ticket);
    }

    pub(crate) fn ready_removed(&mut self, ticket: Ticket, completion_index: u64) {
        let key = self.ready_key(ticket, completion_index);
        if let Some(domain) = self.domain_of(ticket) {
            domain.ready.remove(&key);
        }
        self.end(ticket);
    }

    /// Removes and returns the groups of the next batch, whose slots are the first `size`: for each domain its first ready
    /// ones, none of which may have to wait for a running group. The tickets do not end.
    pub(crate) fn take(&mut self, size: usize) -> Option<Vec<Ticket>> {
        let mut wanted = vec![0; self.domains.len()];
        if self.state.slots.len() < size {
            return None;
        }
        for &domain in self.state.slots.iter().take(size) {
            wanted[domain as usize] += 1;
        }
        let waits_for = |domain: &DomainGroups| match self.order {
            CutOrder::Ticket => domain.running.first().map_or(u64::MAX, |ticket| ticket.0),
            CutOrder::Completion => u64::MAX,
        };
        let is_ready = |(domain, &wanted): (&DomainGroups, &usize)| {
            domain.ready.range(..waits_for(domain)).take(wanted).count() == wanted
        };
        if !self.domains.iter().zip(&wanted).all(is_ready) {
            return None;
        }
        let mut taken = BTreeMap::new();
        for (domain, wanted) in self.domains.iter_mut().zip(wanted) {
            taken.extend(std::iter::from_fn(|| domain.ready.pop_first()).take(wanted));
        }
        self.state.slots.drain(..size);
        Some(taken.into_values().collect())
    }

    /// Removes all held groups.
    pub(crate) fn clear(&mut self) {
        for domain in &mut self.domains {
            let DomainGroups { running, ready } = std::mem::take(domain);
            for ticket in running.into_iter().chain(ready.into_values()) {
                self.state.draws.remove(&ticket);
            }
        }
    }

    fn domain_of(&mut self, ticket: Ticket) -> Option<&mut DomainGroups> {
        let draw = self.state.draws.get(&ticket)?;
        self.domains.get_mut(draw.domain as usize)
    }

    fn key(&self, ticket: Ticket, held: HeldGroup) -> Option<u64> {
        match held {
            HeldGroup::Running { .. } => None,
            HeldGroup::Ready { completion_index, .. } => Some(self.ready_key(ticket, completion_index)),
        }
    }

    /// Position of a ready group among those of its domain.
    fn ready_key(&self, ticket: Ticket, completion_index: u64) -> u64 {
        match self.order {
            CutOrder::Ticket => ticket.0,
            CutOrder::Completion => completion_index,
        }
    }
}
