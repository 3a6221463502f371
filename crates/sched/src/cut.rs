//! SCHED-2, SCHED-4, SCHED-7 and SCHED-10: cutting batches and dropping groups that no batch can contain.

use crate::groups::HeldGroup;
use crate::state::InFlightWork;
use crate::wait::Deadlines;
use crate::{End, Scheduler, SchedulerCommand, Stragglers};

impl Scheduler {
    /// Cuts a batch if enough groups are ready, and drops the groups that are too old for all later batches.
    pub(crate) fn cut(&mut self, commands: &mut Vec<SchedulerCommand>) {
        let size = usize::try_from(self.settings.groups_per_batch).unwrap_or(usize::MAX);
        let mut ages = Vec::new();
        let rule = self.settings.reuse;
        let note_age = |ticket, oldest| ages.extend(rule.map(|_| (ticket, oldest)));
        let waits = self.settings.stragglers == Stragglers::Wait;
        let (batch, max_staleness) = (self.version.0, self.settings.max_staleness);
        let deadlines = waits.then_some(Deadlines { batch, size, max_staleness });
        let Some(tickets) = self.groups.take_batch(size, deadlines, note_age) else { return };
        let reused = rule.map(|rule| self.reuse.cut(&rule, self.version.0, ages)).unwrap_or_default();
        self.in_flight = InFlightWork::Training(tickets.clone());
        self.deferred_round = false;
        // Before the training command: a driver that trains synchronously must not keep generating for dropped groups.
        self.drop_untrainable(commands);
        commands.push(SchedulerCommand::TrainBatch { batch: self.version.0, tickets, reused });
    }

    /// Number of the next batch to be cut: the earliest one that an open group can still join.
    fn next_batch(&self) -> u64 {
        self.version.0 + u64::from(matches!(self.in_flight, InFlightWork::Training(_)))
    }

    /// Drops or defers the groups that can no longer join a batch.
    pub(crate) fn drop_untrainable(&mut self, commands: &mut Vec<SchedulerCommand>) {
        if self.next_batch() >= self.settings.batches {
            let surplus = self.groups.clear().into_iter();
            commands.extend(surplus.map(|t| SchedulerCommand::Drop(t, End::Surplus)));
            return;
        }
        let oldest_trainable = self.next_batch().saturating_sub(self.settings.max_staleness);
        while let Some((oldest, ticket)) = self.groups.oldest() {
            if oldest.0 >= oldest_trainable {
                return;
            }
            let Some(held) = self.groups.remove(ticket) else { return };
            match (held, self.settings.stragglers) {
                (HeldGroup::Running { .. }, Stragglers::Defer) => {
                    self.groups.defer(ticket);
                    commands.push(SchedulerCommand::Defer(ticket));
                }
                _ => commands.push(SchedulerCommand::Drop(ticket, End::Stale)),
            }
        }
    }
}
