use rloom_core::{Apportionment, Draw, PolicyVersion, Ticket};

use crate::groups::Groups;
use crate::state::InFlightWork;
use crate::{
    End, GroupEvent, QuotaState, Requirement, ReuseState, SchedError, SchedulerCommand, SchedulerEvent,
    SchedulerSettings, SchedulerState, StateDefect, Stragglers, WorkKind,
};

/// The state machine of one stage. An event costs O(log n) in the number of open groups, and as much again per command
/// returned.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) settings: SchedulerSettings,
    pub(crate) version: PolicyVersion,
    pub(crate) next_ticket: Ticket,
    pub(crate) groups: Groups,
    pub(crate) in_flight: InFlightWork,
    /// True while the running groups are those that were deferred.
    pub(crate) deferred_round: bool,
    pub(crate) reuse: ReuseState,
    completions: u64,
    evaluated: Option<PolicyVersion>,
    saved: Option<PolicyVersion>,
    /// Version at which a stop request ends the stage early.
    stop_at: Option<u64>,
    begun: bool,
    finished: bool,
}

/// Number of groups in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Being generated and scored.
    pub running: usize,
    /// Waiting for their batch.
    pub ready: usize,
    /// Cancelled, to be started again.
    pub deferred: usize,
    /// In the batch being trained.
    pub in_batch: usize,
}

impl Scheduler {
    /// Creates the scheduler of a new stage.
    pub fn new(settings: SchedulerSettings) -> Result<Self, SchedError> {
        Self::resume(settings, SchedulerState::default())
    }

    /// Creates or resumes a stage with quotas, by weights of the domains. A new stage has the default state.
    pub fn with_quotas(
        settings: SchedulerSettings,
        weights: &[f64],
        mut state: SchedulerState,
    ) -> Result<Self, SchedError> {
        if settings.stragglers == Stragglers::Defer {
            return Err(SchedError::DeferRequires(Requirement::NoQuotas));
        }
        if settings.stragglers == Stragglers::Wait {
            return Err(SchedError::WaitRequires(Requirement::NoQuotas));
        }
        let is_new = state == SchedulerState::default();
        match &mut state.quotas {
            None if is_new => {
                let sequence = Apportionment::new(weights).ok_or(SchedError::Quotas)?;
                state.quotas = Some(QuotaState::new(sequence));
            }
            None => return Err(StateDefect::Quota.into()),
            Some(quotas) if quotas.sequence.parties() != weights.len() => {
                return Err(StateDefect::Quota.into());
            }
            Some(quotas) => {
                if !quotas.sequence.set_weights(weights) {
                    return Err(SchedError::Quotas);
                }
            }
        }
        Self::resume(settings, state)
    }

    /// Resumes a stage from a saved state.
    pub fn resume(settings: SchedulerSettings, state: SchedulerState) -> Result<Self, SchedError> {
        settings.validate()?;
        state.validate(&settings)?;
        Ok(Self {
            settings,
            version: state.version,
            next_ticket: state.next_ticket,
            groups: Groups::restore(&state, settings.cut_order),
            in_flight: state.in_flight,
            deferred_round: state.deferred_round,
            reuse: state.reuse,
            completions: state.completions,
            evaluated: state.evaluated,
            saved: state.saved,
            stop_at: None,
            begun: false,
            finished: false,
        })
    }

    /// The state that a checkpoint must contain to resume from here.
    pub fn state(&self) -> SchedulerState {
        SchedulerState {
            version: self.version,
            next_ticket: self.next_ticket,
            open_groups: self.groups.open_groups(),
            completions: self.completions,
            in_flight: self.in_flight.clone(),
            deferred_round: self.deferred_round,
            evaluated: self.evaluated,
            saved: self.saved,
            quotas: self.groups.quotas().map(|quotas| quotas.state().clone()),
            reuse: self.reuse.clone(),
        }
    }

    /// The place of a ticket's task: without quotas, tasks are drawn in the order of the tickets.
    pub fn draw(&self, ticket: Ticket) -> Draw {
        let drawn = self.groups.quotas().and_then(|quotas| quotas.draw(ticket));
        drawn.unwrap_or(Draw { domain: 0, position: ticket.0 })
    }

    /// Changes the weights of the quotas for the groups after those that may already start.
    pub fn set_quotas(&mut self, weights: &[f64]) -> Result<(), SchedError> {
        let changed = self.groups.quotas_mut().is_some_and(|quotas| quotas.set_weights(weights));
        if changed { Ok(()) } else { Err(SchedError::Quotas) }
    }

    /// True if a later batch may reuse the group, or if the batch in flight contains it.
    pub fn is_reusable(&self, ticket: Ticket) -> bool {
        self.reuse.groups.contains_key(&ticket)
    }

    /// Batches trained and published.
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// Number of groups in each state.
    pub fn counts(&self) -> Counts {
        Counts {
            running: self.groups.running(),
            ready: self.groups.ready(),
            deferred: self.groups.deferred(),
            in_batch: self.in_batch(),
        }
    }

    /// The version that a running group started with; `None` if the group is not running.
    pub fn started(&self, ticket: Ticket) -> Option<PolicyVersion> {
        self.groups.started(ticket)
    }

    /// Processes an event and returns the commands it causes.
    pub fn handle(&mut self, event: SchedulerEvent) -> Result<Vec<SchedulerCommand>, SchedError> {
        let mut commands = Vec::new();
        self.handle_into(event, &mut commands)?;
        Ok(commands)
    }

    /// Like [`handle`](Self::handle), but appends to `commands` so that the buffer can be reused.
    pub fn handle_into(
        &mut self,
        event: SchedulerEvent,
        commands: &mut Vec<SchedulerCommand>,
    ) -> Result<(), SchedError> {
        match event {
            SchedulerEvent::Begin => self.begin(commands)?,
            SchedulerEvent::GroupReady { ticket, oldest } => {
                if !self.groups.complete(ticket, oldest, self.completions) {
                    return Err(SchedError::NotRunning { ticket, event: GroupEvent::Ready });
                }
                self.completions += 1;
                self.drop_untrainable(commands);
            }
            SchedulerEvent::GroupFiltered(ticket) => {
                self.drop_running(ticket, GroupEvent::Filtered, End::Filtered, commands)?;
            }
            SchedulerEvent::GroupFailed(ticket) => {
                self.drop_running(ticket, GroupEvent::Failed, End::Failed, commands)?;
            }
            SchedulerEvent::BatchTrained => {
                let InFlightWork::Training(tickets) = &self.in_flight else {
                    return Err(SchedError::NotInFlight(WorkKind::Training));
                };
                if let Some(quotas) = self.groups.quotas_mut() {
                    for &ticket in tickets {
                        quotas.end(ticket);
                    }
                }
                self.in_flight = InFlightWork::Nothing;
                self.version.0 += 1;
                self.reuse.trained(self.settings.reuse.as_ref(), self.version.0);
            }
            SchedulerEvent::Evaluated => {
                self.complete_work(&InFlightWork::Evaluating, WorkKind::Evaluation)?;
                self.evaluated = Some(self.version);
            }
            SchedulerEvent::Checkpointed => {
                self.complete_work(&InFlightWork::Checkpointing, WorkKind::Checkpoint)?;
                self.saved = Some(self.version);
            }
            SchedulerEvent::StopRequested => {
                let batch_in_flight = self.in_batch() + self.groups.held() > 0;
                self.stop_at.get_or_insert(self.version.0 + u64::from(batch_in_flight));
            }
            SchedulerEvent::StopWithdrawn => {
                self.stop_at = None;
                self.finished = false;
            }
        }
        self.advance(commands);
        Ok(())
    }

    /// Reissues the commands that a resumed stage had in flight.
    fn begin(&mut self, commands: &mut Vec<SchedulerCommand>) -> Result<(), SchedError> {
        if std::mem::replace(&mut self.begun, true) {
            return Err(SchedError::AlreadyBegun);
        }
        self.drop_untrainable(commands);
        commands.extend(self.groups.running_tickets().map(SchedulerCommand::StartGroup));
        match &self.in_flight {
            InFlightWork::Nothing => {}
            InFlightWork::Training(tickets) => {
                commands.push(SchedulerCommand::TrainBatch {
                    batch: self.version.0,
                    tickets: tickets.clone(),
                    reused: self.reuse.drawn.clone(),
                });
            }
            InFlightWork::Evaluating => commands.push(SchedulerCommand::Evaluate(self.version)),
            InFlightWork::Checkpointing => commands.push(SchedulerCommand::Checkpoint(self.version)),
        }
        Ok(())
    }

    /// Ends a running group early; admission starts a replacement.
    fn drop_running(
        &mut self,
        ticket: Ticket,
        event: GroupEvent,
        end: End,
        commands: &mut Vec<SchedulerCommand>,
    ) -> Result<(), SchedError> {
        if self.groups.started(ticket).is_none() {
            return Err(SchedError::NotRunning { ticket, event });
        }
        if self.settings.pin_version {
            return Err(SchedError::Pinned { ticket, event });
        }
        self.groups.remove(ticket);
        commands.push(SchedulerCommand::Drop(ticket, end));
        Ok(())
    }

    fn complete_work(&mut self, work: &InFlightWork, kind: WorkKind) -> Result<(), SchedError> {
        if self.in_flight != *work {
            return Err(SchedError::NotInFlight(kind));
        }
        self.in_flight = InFlightWork::Nothing;
        Ok(())
    }

    /// Number of groups in the batch being trained.
    pub(crate) fn in_batch(&self) -> usize {
        match &self.in_flight {
            InFlightWork::Training(tickets) => tickets.len(),
            _ => 0,
        }
    }

    /// Version at which the stage ends, by its settings or by request.
    pub(crate) fn final_version(&self) -> u64 {
        self.stop_at.map_or(self.settings.batches, |stop| stop.min(self.settings.batches))
    }

    /// True once the stage has trained its last batch.
    fn training_finished(&self) -> bool {
        self.version.0 >= self.final_version()
    }

    fn due(every: u64, version: PolicyVersion) -> bool {
        every > 0 && version.0.is_multiple_of(every)
    }

    fn evaluation_due(&self) -> bool {
        let at_end = self.version.0 >= self.settings.batches;
        self.settings.evaluate_every > 0
            && self.stop_at.is_none()
            && self.evaluated != Some(self.version)
            && (Self::due(self.settings.evaluate_every, self.version) || at_end)
    }

    fn checkpoint_due(&self) -> bool {
        // Version 0 of a stage is its input, so there is nothing new to save.
        self.version.0 > 0
            && self.saved != Some(self.version)
            && (Self::due(self.settings.checkpoint_every, self.version) || self.training_finished())
    }

    fn advance(&mut self, commands: &mut Vec<SchedulerCommand>) {
        if self.finished || !self.begun {
            return;
        }
        if self.in_flight == InFlightWork::Nothing {
            self.start_next_work(commands);
        }
        // A group that starts during training joins a later batch, so it is at least one version old when trained.
        if self.in_flight != InFlightWork::Nothing && self.settings.max_staleness > 0 {
            self.admit(commands);
        }
    }

    /// Starts the next evaluation, checkpoint or batch while no work is in flight.
    fn start_next_work(&mut self, commands: &mut Vec<SchedulerCommand>) {
        if self.evaluation_due() {
            self.in_flight = InFlightWork::Evaluating;
            commands.push(SchedulerCommand::Evaluate(self.version));
        } else if self.checkpoint_due() {
            self.in_flight = InFlightWork::Checkpointing;
            commands.push(SchedulerCommand::Checkpoint(self.version));
        } else if self.training_finished() {
            self.finished = true;
            commands.push(SchedulerCommand::Finish);
        } else {
            self.choose_round();
            self.admit(commands);
            self.cut(commands);
        }
    }
}
