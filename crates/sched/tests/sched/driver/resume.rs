//! Restarts: from a saved state, with and without the events since then.

use rloom_sched::{
    GroupStatus, InFlightWork, Scheduler, SchedulerCommand, SchedulerEvent, SchedulerSettings, SchedulerState,
};

use super::SimulatedDriver;

impl SimulatedDriver {
    /// Simulates a crash and restart: resumes a scheduler from the state saved at log index `from` and replays the log
    /// since then. It must return the same commands.
    pub(crate) fn restart(&mut self, from: usize, state: &SchedulerState) {
        let (mut scheduler, more) = resumed(self.settings, state);
        assert_eq!(more, []);
        for (event, commands) in &self.log[from..] {
            assert_eq!(&scheduler.handle(*event).unwrap(), commands, "replay of {event:?}");
        }
        assert_eq!(scheduler.state(), self.scheduler.state());
        self.scheduler = scheduler;
    }

    /// Simulates the next attempt after a stop request it does not know about: replays the log since `state` without the
    /// request; at least the same batches are cut.
    pub(crate) fn resume_after_stop(&mut self, from: usize, state: &SchedulerState) {
        let (mut scheduler, mut commands) = resumed(self.settings, state);
        let mut cuts = Vec::new();
        if let InFlightWork::Training(tickets) = &state.in_flight {
            cuts.push(tickets.clone());
        }
        let mut finished = false;
        let replayed: Vec<SchedulerEvent> = self.log[from..]
            .iter()
            .map(|(e, _)| *e)
            .filter(|e| *e != SchedulerEvent::StopRequested)
            .collect();
        let mut replayed = replayed.into_iter();
        loop {
            for command in commands {
                match command {
                    SchedulerCommand::TrainBatch { tickets, .. } => {
                        cuts.push(tickets);
                        self.replaced = 0;
                        self.deferred_before = scheduler.counts().deferred;
                    }
                    SchedulerCommand::Drop(ticket, end) => {
                        self.ends.insert(ticket, end);
                    }
                    SchedulerCommand::Evaluate(version) => self.evaluations.push(version.0),
                    SchedulerCommand::Finish => finished = true,
                    SchedulerCommand::StartGroup(ticket) if !self.slots.is_empty() => {
                        let draw = scheduler.draw(ticket);
                        assert!(self.draws.insert(ticket, draw).is_none_or(|before| before == draw));
                    }
                    SchedulerCommand::StartGroup(_)
                    | SchedulerCommand::Defer(_)
                    | SchedulerCommand::Checkpoint(_) => {}
                }
            }
            let Some(event) = replayed.next() else { break };
            commands = scheduler.handle(event).unwrap();
        }
        self.evaluations.dedup();
        let mut recorded = self.batches.iter().chain(&self.training).skip(state.version.0 as usize);
        assert!(cuts.iter().all(|cut| recorded.next().is_none_or(|r| r == cut)), "{cuts:?}");
        assert_eq!(recorded.next(), None);
        self.adopt(scheduler, finished);
    }

    /// Continues with another scheduler, from its state alone.
    pub(crate) fn adopt(&mut self, scheduler: Scheduler, finished: bool) {
        let state = scheduler.state();
        self.running.clear();
        self.ready.clear();
        self.deferred.clear();
        for group in &state.open_groups {
            match group.status {
                GroupStatus::Running { started } => {
                    self.running.insert(group.ticket, started.0);
                }
                GroupStatus::Ready { oldest, completion_index } => {
                    self.ready.insert(group.ticket, (oldest.0, completion_index));
                }
                GroupStatus::Deferred => {
                    self.deferred.insert(group.ticket);
                }
            }
        }
        self.ever_deferred.extend(&self.deferred);
        self.training = None;
        self.reusing.clone_from(&state.reuse.drawn);
        self.oldest.extend(state.reuse.groups.iter().map(|(&ticket, group)| (ticket, group.oldest.0)));
        self.pending = match state.in_flight {
            InFlightWork::Nothing => None,
            InFlightWork::Training(tickets) => {
                self.training = Some(tickets);
                Some(SchedulerEvent::BatchTrained)
            }
            InFlightWork::Evaluating => Some(SchedulerEvent::Evaluated),
            InFlightWork::Checkpointing => Some(SchedulerEvent::Checkpointed),
        };
        self.completions = state.completions;
        self.scheduler = scheduler;
        self.stopping = false;
        self.finished = finished;
        self.check();
    }
}

/// Resumes a scheduler from a serialised state and begins it. Checks that it reissues the commands in flight and returns
/// any further commands.
pub(crate) fn resumed(
    settings: SchedulerSettings,
    state: &SchedulerState,
) -> (Scheduler, Vec<SchedulerCommand>) {
    let state: SchedulerState = serde_json::from_slice(&serde_json::to_vec(state).unwrap()).unwrap();
    let mut scheduler = Scheduler::resume(settings, state.clone()).unwrap();
    assert_eq!(scheduler.state(), state);
    let mut expected: Vec<SchedulerCommand> = state
        .open_groups
        .iter()
        .filter(|g| matches!(g.status, GroupStatus::Running { .. }))
        .map(|g| SchedulerCommand::StartGroup(g.ticket))
        .collect();
    expected.extend(match &state.in_flight {
        InFlightWork::Nothing => None,
        InFlightWork::Training(tickets) => {
            let (tickets, reused) = (tickets.clone(), state.reuse.drawn.clone());
            Some(SchedulerCommand::TrainBatch { batch: state.version.0, tickets, reused })
        }
        InFlightWork::Evaluating => Some(SchedulerCommand::Evaluate(state.version)),
        InFlightWork::Checkpointing => Some(SchedulerCommand::Checkpoint(state.version)),
    });
    let commands = scheduler.handle(SchedulerEvent::Begin).unwrap();
    let (reissued, more) = commands.split_at(expected.len());
    assert_eq!(reissued, expected);
    (scheduler, more.to_vec())
}
