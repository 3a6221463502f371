use std::collections::BTreeSet;

use rloom_core::{PolicyVersion, Ticket};
use serde::{Deserialize, Serialize};

use crate::{QuotaState, ReuseState, SchedError, SchedulerSettings, StateDefect, Stragglers};

/// Complete state of a scheduler except for a stop request: after [`Scheduler::resume`](crate::Scheduler::resume) the same
/// events give the same commands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SchedulerState {
    /// Batches trained and published.
    pub version: PolicyVersion,
    /// Next ticket to issue.
    pub next_ticket: Ticket,
    /// Groups with a ticket that have neither ended nor been cut into a batch, by ticket.
    pub open_groups: Vec<OpenGroup>,
    /// Groups that have become ready so far.
    #[serde(default)]
    pub completions: u64,
    /// Work requested and not reported as complete.
    #[serde(default)]
    pub in_flight: InFlightWork,
    /// True while the running groups are those that were deferred.
    #[serde(default)]
    pub deferred_round: bool,
    /// Last version that was evaluated.
    pub evaluated: Option<PolicyVersion>,
    /// Last version known to be saved.
    #[serde(default)]
    pub saved: Option<PolicyVersion>,
    /// Quotas of the domains, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<QuotaState>,
    /// Groups that batches reuse.
    #[serde(default, skip_serializing_if = "ReuseState::is_empty")]
    pub reuse: ReuseState,
}

/// A group that has not ended and is in no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenGroup {
    /// Ticket of the group.
    pub ticket: Ticket,
    /// Progress of the group.
    pub status: GroupStatus,
}

/// Progress of an open group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupStatus {
    /// Being generated and scored.
    Running {
        /// Version the group started with.
        started: PolicyVersion,
    },
    /// Waiting for its batch.
    Ready {
        /// The oldest version among its policy tokens.
        oldest: PolicyVersion,
        /// Position in the order of completion, from 0.
        completion_index: u64,
    },
    /// Cancelled, to be started again.
    Deferred,
}

/// Work requested from the driver and not reported as complete. At most one item at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InFlightWork {
    /// No work.
    #[default]
    Nothing,
    /// Training and publishing a batch of these groups.
    Training(Vec<Ticket>),
    /// Evaluating the current version.
    Evaluating,
    /// Saving the current version.
    Checkpointing,
}

impl SchedulerState {
    /// Repairs a state whose ready group was lost: the group becomes running with the state's version, and
    /// [`SchedulerEvent::Begin`] starts it again. Returns false if the ticket is not ready.
    ///
    /// [`SchedulerEvent::Begin`]: crate::SchedulerEvent::Begin
    pub fn restart_group(&mut self, ticket: Ticket) -> bool {
        let version = self.version;
        let ready = |g: &&mut OpenGroup| g.ticket == ticket && matches!(g.status, GroupStatus::Ready { .. });
        match self.open_groups.iter_mut().find(ready) {
            Some(group) => {
                group.status = GroupStatus::Running { started: version };
                true
            }
            None => false,
        }
    }

    /// Repairs a state whose batch in flight was lost in part: its groups become running with the state's version, and the
    /// batch is cut again.
    pub fn restart_batch(&mut self) {
        let InFlightWork::Training(tickets) = std::mem::take(&mut self.in_flight) else { return };
        let started = self.version;
        self.reuse.restart_batch(started.0);
        let running = |&ticket| OpenGroup { ticket, status: GroupStatus::Running { started } };
        self.open_groups.extend(tickets.iter().map(running));
        self.open_groups.sort_by_key(|group| group.ticket);
        if let Some(quotas) = &mut self.quotas {
            for ticket in tickets {
                if let Some(draw) = quotas.draws.get(&ticket) {
                    quotas.slots.push_front(draw.domain);
                }
            }
        }
    }

    /// Repairs a state whose reusable group was lost: no later batch reuses it.
    pub fn forget_reusable(&mut self, ticket: Ticket) {
        self.reuse.groups.remove(&ticket);
    }

    /// Rejects a state that no scheduler with these settings can have.
    pub(crate) fn validate(&self, settings: &SchedulerSettings) -> Result<(), SchedError> {
        if !self.open_groups.iter().map(|g| g.ticket).is_sorted_by(|a, b| a < b) {
            return Err(StateDefect::TicketOrder.into());
        }
        if let Some(last) = self.open_groups.last().filter(|g| g.ticket >= self.next_ticket) {
            return Err(StateDefect::TicketNotIssued(last.ticket).into());
        }
        self.validate_groups(settings)?;
        self.validate_batch(settings)?;
        if let Some(quotas) = &self.quotas {
            let mut tickets: BTreeSet<Ticket> = self.open_groups.iter().map(|group| group.ticket).collect();
            if let InFlightWork::Training(batch) = &self.in_flight {
                tickets.extend(batch);
            }
            quotas.validate(&tickets)?;
        }
        let batch: &[Ticket] = if let InFlightWork::Training(batch) = &self.in_flight { batch } else { &[] };
        let open = self.open_groups.iter().map(|group| group.ticket).collect();
        self.reuse.validate(self.version, batch, &open, self.next_ticket)?;
        Ok(())
    }

    fn validate_groups(&self, settings: &SchedulerSettings) -> Result<(), StateDefect> {
        let mut indices = BTreeSet::new();
        for group in &self.open_groups {
            match group.status {
                GroupStatus::Running { started } if started > self.version => {
                    return Err(StateDefect::UnknownVersion(group.ticket));
                }
                GroupStatus::Ready { completion_index, .. }
                    if completion_index >= self.completions || !indices.insert(completion_index) =>
                {
                    return Err(StateDefect::CompletionOrder);
                }
                GroupStatus::Deferred if settings.stragglers != Stragglers::Defer => {
                    return Err(StateDefect::Deferred(group.ticket));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn validate_batch(&self, settings: &SchedulerSettings) -> Result<(), StateDefect> {
        let InFlightWork::Training(tickets) = &self.in_flight else { return Ok(()) };
        let (found, expected) = (tickets.len() as u64, settings.groups_per_batch);
        if found != expected {
            return Err(StateDefect::BatchSize { found, expected });
        }
        let mut distinct = BTreeSet::new();
        let open = |t: &Ticket| self.open_groups.binary_search_by_key(t, |g| g.ticket).is_ok();
        match tickets.iter().find(|t| !distinct.insert(**t) || **t >= self.next_ticket || open(t)) {
            Some(invalid) => Err(StateDefect::BatchTicket(*invalid)),
            None => Ok(()),
        }
    }
}
