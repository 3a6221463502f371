//! SCHED-1 and SCHED-3: which groups start.

use crate::{Command, Scheduler};

impl Scheduler {
    /// Starts groups up to the bound. Those that ended are replaced by this too.
    pub(crate) fn admit(&mut self, commands: &mut Vec<Command>) {
        let bound = self.admission_bound();
        let trained = self.version.0.saturating_mul(self.settings.batch_groups);
        let mut sum = trained + (self.in_batch() + self.groups.held()) as u64;
        while sum < bound {
            let put_off = if self.put_off_round { self.groups.take_put_off() } else { None };
            let ticket = put_off.unwrap_or_else(|| {
                let fresh = self.next_ticket;
                self.next_ticket.0 += 1;
                fresh
            });
            self.groups.start(ticket, self.version);
            commands.push(Command::StartGroup(ticket));
            sum += 1;
        }
    }

    /// What `trained + ready + running` may reach.
    fn admission_bound(&self) -> u64 {
        let s = &self.settings;
        let ahead = s.max_staleness.saturating_add(self.version.0 + 1).min(self.last());
        let beyond = if ahead < self.last() && !self.put_off_round { s.oversample } else { 0 };
        ahead.saturating_mul(s.batch_groups).saturating_add(beyond)
    }

    /// Makes the round that begins one of groups that were put off, if they are enough for a batch. They become more at a
    /// cut only, so this never turns a round that is under way.
    pub(crate) fn choose_round(&mut self) {
        self.put_off_round |= self.groups.put_off() as u64 >= self.settings.batch_groups;
    }
}
