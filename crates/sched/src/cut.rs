//! SCHED-2, SCHED-4 and SCHED-7: what is trained, and what can no longer be.

use crate::groups::Held;
use crate::state::UnderWay;
use crate::{Command, End, Scheduler, Stragglers};

impl Scheduler {
    /// Cuts a batch if there is one, and ends what came too late for all later ones.
    pub(crate) fn cut(&mut self, commands: &mut Vec<Command>) {
        let size = usize::try_from(self.settings.batch_groups).unwrap_or(usize::MAX);
        let Some(tickets) = self.groups.take_batch(size) else { return };
        self.under_way = UnderWay::Training(tickets.clone());
        self.put_off_round = false;
        // First, so that nothing is generated for nothing beside a driver that trains before it does anything else.
        self.end_hopeless(commands);
        commands.push(Command::TrainBatch { batch: self.version.0, tickets });
    }

    /// The number of the batch that is cut next: the earliest that a group can still be in.
    fn next_batch(&self) -> u64 {
        self.version.0 + u64::from(matches!(self.under_way, UnderWay::Training(_)))
    }

    /// Ends or puts off the groups that no batch can have any more.
    pub(crate) fn end_hopeless(&mut self, commands: &mut Vec<Command>) {
        if self.next_batch() >= self.settings.batches {
            commands.extend(self.groups.clear().into_iter().map(|t| Command::Drop(t, End::Surplus)));
            return;
        }
        let oldest_trainable = self.next_batch().saturating_sub(self.settings.max_staleness);
        while let Some((oldest, ticket)) = self.groups.oldest() {
            if oldest.0 >= oldest_trainable {
                return;
            }
            let Some(held) = self.groups.remove(ticket) else { return };
            match (held, self.settings.stragglers) {
                (Held::Running { .. }, Stragglers::PutOff) => {
                    self.groups.keep_for_later(ticket);
                    commands.push(Command::PutOff(ticket));
                }
                _ => commands.push(Command::Drop(ticket, End::Stale)),
            }
        }
    }
}
