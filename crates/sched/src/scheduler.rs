use rloom_core::{PolicyVersion, Ticket};

use crate::groups::Groups;
use crate::state::UnderWay;
use crate::{Command, End, Event, SchedError, SchedulerSettings, SchedulerState};

/// The state machine of one stage. An event costs the logarithm of the number of groups that are alive, and as much
/// again for each command that it gives.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) settings: SchedulerSettings,
    pub(crate) version: PolicyVersion,
    pub(crate) next_ticket: Ticket,
    pub(crate) groups: Groups,
    pub(crate) under_way: UnderWay,
    /// Whether the groups that run are those that were put off.
    pub(crate) put_off_round: bool,
    completions: u64,
    evaluated: Option<PolicyVersion>,
    saved: Option<PolicyVersion>,
    /// The version at which a stop ends the stage early.
    stop_at: Option<u64>,
    begun: bool,
    finished: bool,
}

/// How many groups are where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Generated and scored at present.
    pub running: usize,
    /// Waiting for their batch.
    pub ready: usize,
    /// Cancelled, to start again.
    pub put_off: usize,
    /// In the batch that is trained at present.
    pub in_batch: usize,
}

impl Scheduler {
    /// A stage that begins.
    pub fn new(settings: SchedulerSettings) -> Result<Self, SchedError> {
        Self::resume(settings, SchedulerState::default())
    }

    /// A stage that goes on from where `state` was taken.
    pub fn resume(settings: SchedulerSettings, state: SchedulerState) -> Result<Self, SchedError> {
        settings.validate()?;
        state.validate(&settings)?;
        Ok(Self {
            settings,
            version: state.version,
            next_ticket: state.next_ticket,
            groups: Groups::restore(&state, settings.cut_order),
            under_way: state.under_way,
            put_off_round: state.put_off_round,
            completions: state.completions,
            evaluated: state.evaluated,
            saved: state.saved,
            stop_at: None,
            begun: false,
            finished: false,
        })
    }

    /// What a checkpoint must hold to resume from here.
    pub fn state(&self) -> SchedulerState {
        SchedulerState {
            version: self.version,
            next_ticket: self.next_ticket,
            alive: self.groups.alive(),
            completions: self.completions,
            under_way: self.under_way.clone(),
            put_off_round: self.put_off_round,
            evaluated: self.evaluated,
            saved: self.saved,
        }
    }

    /// Batches trained and published.
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// How many groups are where.
    pub fn counts(&self) -> Counts {
        Counts {
            running: self.groups.running(),
            ready: self.groups.ready(),
            put_off: self.groups.put_off(),
            in_batch: self.in_batch(),
        }
    }

    /// The version under which a group started that still runs.
    pub fn started(&self, ticket: Ticket) -> Option<PolicyVersion> {
        self.groups.started(ticket)
    }

    /// Takes an event and says what to do next.
    pub fn handle(&mut self, event: Event) -> Result<Vec<Command>, SchedError> {
        let mut commands = Vec::new();
        self.handle_into(event, &mut commands)?;
        Ok(commands)
    }

    /// [`handle`](Self::handle) for callers with many events: appends to `commands`.
    pub fn handle_into(&mut self, event: Event, commands: &mut Vec<Command>) -> Result<(), SchedError> {
        match event {
            Event::Begin => self.begin(commands)?,
            Event::GroupReady { ticket, oldest } => {
                if !self.groups.complete(ticket, oldest, self.completions) {
                    return Err(SchedError::NotRunning { ticket, what: "ready" });
                }
                self.completions += 1;
                self.end_hopeless(commands);
            }
            Event::GroupFiltered(ticket) => self.replace(ticket, "filtered", End::Filtered, commands)?,
            Event::GroupFailed(ticket) => self.replace(ticket, "failed", End::Failed, commands)?,
            Event::BatchTrained => {
                if !matches!(self.under_way, UnderWay::Training(_)) {
                    return Err(SchedError::NotAsked("batch trained"));
                }
                self.under_way = UnderWay::Nothing;
                self.version.0 += 1;
            }
            Event::Evaluated => {
                self.done(&UnderWay::Evaluating, "evaluated")?;
                self.evaluated = Some(self.version);
            }
            Event::Checkpointed => {
                self.done(&UnderWay::Saving, "checkpointed")?;
                self.saved = Some(self.version);
            }
            Event::StopRequested => {
                let batch_under_way = self.in_batch() + self.groups.held() > 0;
                self.stop_at.get_or_insert(self.version.0 + u64::from(batch_under_way));
            }
            Event::StopWithdrawn => {
                self.stop_at = None;
                self.finished = false;
            }
        }
        self.advance(commands);
        Ok(())
    }

    /// Says again what a resumed stage had under way.
    fn begin(&mut self, commands: &mut Vec<Command>) -> Result<(), SchedError> {
        if std::mem::replace(&mut self.begun, true) {
            return Err(SchedError::BegunTwice);
        }
        self.end_hopeless(commands);
        commands.extend(self.groups.running_tickets().map(Command::StartGroup));
        match &self.under_way {
            UnderWay::Nothing => {}
            UnderWay::Training(tickets) => {
                commands.push(Command::TrainBatch { batch: self.version.0, tickets: tickets.clone() });
            }
            UnderWay::Evaluating => commands.push(Command::Evaluate(self.version)),
            UnderWay::Saving => commands.push(Command::Checkpoint(self.version)),
        }
        Ok(())
    }

    /// A running group ends before its time; admission starts another.
    fn replace(
        &mut self,
        ticket: Ticket,
        what: &'static str,
        end: End,
        commands: &mut Vec<Command>,
    ) -> Result<(), SchedError> {
        if self.groups.started(ticket).is_none() {
            return Err(SchedError::NotRunning { ticket, what });
        }
        if self.settings.pin_version {
            return Err(SchedError::Pinned { ticket, what });
        }
        self.groups.remove(ticket);
        commands.push(Command::Drop(ticket, end));
        Ok(())
    }

    fn done(&mut self, what: &UnderWay, name: &'static str) -> Result<(), SchedError> {
        if self.under_way != *what {
            return Err(SchedError::NotAsked(name));
        }
        self.under_way = UnderWay::Nothing;
        Ok(())
    }

    /// Groups of the batch that is trained at present.
    pub(crate) fn in_batch(&self) -> usize {
        match &self.under_way {
            UnderWay::Training(tickets) => tickets.len(),
            _ => 0,
        }
    }

    /// The version at which this stage ends, by count or by request.
    pub(crate) fn last(&self) -> u64 {
        self.stop_at.map_or(self.settings.batches, |stop| stop.min(self.settings.batches))
    }

    /// Whether the training of this stage is over.
    fn over(&self) -> bool {
        self.version.0 >= self.last()
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
        // Version 0 of a stage is its input: there is nothing new to save.
        self.version.0 > 0
            && self.saved != Some(self.version)
            && (Self::due(self.settings.checkpoint_every, self.version) || self.over())
    }

    fn advance(&mut self, commands: &mut Vec<Command>) {
        if self.finished || !self.begun {
            return;
        }
        if self.under_way == UnderWay::Nothing {
            self.proceed(commands);
        }
        // A group that starts beside training is for a later batch, so it is a version old at least when it is trained.
        if self.under_way != UnderWay::Nothing && self.settings.max_staleness > 0 {
            self.admit(commands);
        }
    }

    /// The next thing to be done, when nothing is.
    fn proceed(&mut self, commands: &mut Vec<Command>) {
        if self.evaluation_due() {
            self.under_way = UnderWay::Evaluating;
            commands.push(Command::Evaluate(self.version));
        } else if self.checkpoint_due() {
            self.under_way = UnderWay::Saving;
            commands.push(Command::Checkpoint(self.version));
        } else if self.over() {
            self.finished = true;
            commands.push(Command::Finish);
        } else {
            self.choose_round();
            self.admit(commands);
            self.cut(commands);
        }
    }
}
