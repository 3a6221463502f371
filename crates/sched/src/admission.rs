//! SCHED-1 and SCHED-3: starting groups.

use crate::{Scheduler, SchedulerCommand};

impl Scheduler {
    /// Starts groups up to the admission bound, which also replaces those that ended.
    pub(crate) fn admit(&mut self, commands: &mut Vec<SchedulerCommand>) {
        let bound = self.admission_bound();
        let trained = self.version.0.saturating_mul(self.settings.groups_per_batch);
        if self.groups.quotas().is_some() {
            self.admit_by_quota(bound.saturating_sub(trained + self.in_batch() as u64), commands);
            return;
        }
        let mut sum = trained + (self.in_batch() + self.groups.held()) as u64;
        while sum < bound {
            let deferred = if self.deferred_round { self.groups.take_deferred() } else { None };
            let ticket = deferred.unwrap_or_else(|| {
                let fresh = self.next_ticket;
                self.next_ticket.0 += 1;
                fresh
            });
            self.groups.start(ticket, self.version);
            commands.push(SchedulerCommand::StartGroup(ticket));
            sum += 1;
        }
    }

    /// Starts a group of the right domain for each of the next `slots` slots that has none (SCHED-9).
    fn admit_by_quota(&mut self, slots: u64, commands: &mut Vec<SchedulerCommand>) {
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        while let Some(quotas) = self.groups.quotas_mut() {
            let Some(domain) = quotas.next_domain(slots) else { return };
            let ticket = self.next_ticket;
            self.next_ticket.0 += 1;
            quotas.issue(ticket, domain);
            self.groups.start(ticket, self.version);
            commands.push(SchedulerCommand::StartGroup(ticket));
        }
    }

    /// Upper bound of `trained + ready + running`.
    fn admission_bound(&self) -> u64 {
        let s = &self.settings;
        let ahead = s.max_staleness.saturating_add(self.version.0 + 1).min(self.final_version());
        let beyond = if ahead < self.final_version() && !self.deferred_round { s.oversample } else { 0 };
        ahead.saturating_mul(s.groups_per_batch).saturating_add(beyond)
    }

    /// Makes the next round a deferred round if enough groups for a batch are deferred. Groups are deferred only at a
    /// cut, so this never changes a round that has started.
    pub(crate) fn choose_round(&mut self) {
        self.deferred_round |= self.groups.deferred() as u64 >= self.settings.groups_per_batch;
    }
}
