use std::collections::BTreeMap;

use rloom_core::{PolicyVersion, Ticket};
use serde::{Deserialize, Serialize};

use crate::{CutOrder, SchedulerSettings};

/// How a ticket ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// In a batch that was trained and published.
    Trained,
    /// Taken out before training, its rewards carry nothing.
    Filtered,
    /// Too old when its batch was to be cut.
    Stale,
    /// Could not be generated or scored.
    Failed,
    /// Alive when the stage ended.
    Surplus,
}

/// What happened in the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The driver is ready for commands: first of all events, also after a resume.
    Begin,
    /// A group is generated and scored.
    GroupReady {
        /// Which.
        ticket: Ticket,
        /// The oldest version among its policy tokens; the current one when it has none.
        oldest: PolicyVersion,
    },
    /// A group was taken out before training.
    GroupFiltered(Ticket),
    /// A group could not be generated or scored.
    GroupFailed(Ticket),
    /// The batch that was cut is trained and its weights are published.
    BatchTrained,
    /// The evaluation that was asked for is done.
    Evaluated,
    /// The checkpoint that was asked for is durable.
    Checkpointed,
    /// Finish the batch under way, save, and end.
    StopRequested,
}

/// What the driver is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Generate and score a group.
    StartGroup(Ticket),
    /// Train on these groups, publish, then report [`Event::BatchTrained`].
    TrainBatch {
        /// The batch's number, from 0: the version that it starts from.
        batch: u64,
        /// Its groups in training order.
        tickets: Vec<Ticket>,
    },
    /// A ticket ended without being trained: what is kept of it can go.
    Drop(Ticket, End),
    /// Evaluate this version, then report [`Event::Evaluated`].
    Evaluate(PolicyVersion),
    /// Save this version, then report [`Event::Checkpointed`].
    Checkpoint(PolicyVersion),
    /// The stage is over; every ticket has ended.
    Finish,
}

/// An event that cannot have happened in this state: a defect of the driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchedError {
    /// The ticket is not running.
    #[error("the scheduler was told of group {ticket:?} ({what}), which is not running")]
    NotRunning {
        /// The ticket.
        ticket: Ticket,
        /// What was said of it.
        what: &'static str,
    },
    /// Nothing of the kind was asked for.
    #[error("the scheduler was told `{0}`, which it had not asked for")]
    NotAsked(&'static str),
    /// Settings that no run can have.
    #[error("a batch needs at least one group")]
    EmptyBatch,
}

/// What survives a restart. Running groups start again under their own tickets, so they give the same samples.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SchedulerState {
    /// Batches trained and published.
    pub version: PolicyVersion,
    /// The next ticket to give out.
    pub next_ticket: Ticket,
    /// Tickets given out and not ended, in order.
    pub alive: Vec<Ticket>,
    /// The last version that was evaluated.
    pub evaluated: Option<PolicyVersion>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// Ready, with its oldest version and its place in the order of completion.
    Ready(PolicyVersion, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Busy {
    Nothing,
    Training,
    Evaluating,
    Saving,
}

/// The state machine of one stage.
#[derive(Debug, Clone)]
pub struct Scheduler {
    settings: SchedulerSettings,
    version: PolicyVersion,
    next_ticket: Ticket,
    alive: BTreeMap<Ticket, Progress>,
    in_batch: Vec<Ticket>,
    completions: u64,
    busy: Busy,
    evaluated: Option<PolicyVersion>,
    saved: Option<PolicyVersion>,
    /// The version at which a stop ends the stage early.
    stop_at: Option<u64>,
    finished: bool,
}

impl Scheduler {
    /// A stage that begins.
    pub fn new(settings: SchedulerSettings) -> Result<Self, SchedError> {
        Self::resume(settings, SchedulerState::default())
    }

    /// A stage that goes on from a checkpoint of `state.version`.
    pub fn resume(settings: SchedulerSettings, state: SchedulerState) -> Result<Self, SchedError> {
        if settings.batch_groups == 0 {
            return Err(SchedError::EmptyBatch);
        }
        Ok(Self {
            settings,
            version: state.version,
            next_ticket: state.next_ticket,
            alive: state.alive.into_iter().map(|t| (t, Progress::Running)).collect(),
            in_batch: Vec::new(),
            completions: 0,
            busy: Busy::Nothing,
            evaluated: state.evaluated,
            // Version 0 of a stage is its input: there is nothing new to save.
            saved: Some(state.version),
            stop_at: None,
            finished: false,
        })
    }

    /// What a checkpoint must hold to resume from here.
    pub fn state(&self) -> SchedulerState {
        SchedulerState {
            version: self.version,
            next_ticket: self.next_ticket,
            alive: self.alive.keys().copied().collect(),
            evaluated: self.evaluated,
        }
    }

    /// Batches trained and published.
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// Takes an event and says what to do next.
    pub fn handle(&mut self, event: Event) -> Result<Vec<Command>, SchedError> {
        let mut commands = Vec::new();
        match event {
            Event::Begin => commands.extend(self.alive.keys().map(|&t| Command::StartGroup(t))),
            Event::GroupReady { ticket, oldest } => {
                let place = self.completions;
                *self.running(ticket, "ready")? = Progress::Ready(oldest, place);
                self.completions += 1;
            }
            Event::GroupFiltered(ticket) => {
                self.running(ticket, "filtered")?;
                self.end(ticket, End::Filtered, &mut commands);
            }
            Event::GroupFailed(ticket) => {
                self.running(ticket, "failed")?;
                self.end(ticket, End::Failed, &mut commands);
            }
            Event::BatchTrained => {
                self.expect(Busy::Training, "batch trained")?;
                self.in_batch.clear();
                self.version.0 += 1;
            }
            Event::Evaluated => {
                self.expect(Busy::Evaluating, "evaluated")?;
                self.evaluated = Some(self.version);
            }
            Event::Checkpointed => {
                self.expect(Busy::Saving, "checkpointed")?;
                self.saved = Some(self.version);
            }
            Event::StopRequested => {
                let under_way = self.busy == Busy::Training || !self.alive.is_empty();
                self.stop_at.get_or_insert(self.version.0 + u64::from(under_way));
            }
        }
        self.advance(&mut commands);
        Ok(commands)
    }

    fn running(&mut self, ticket: Ticket, what: &'static str) -> Result<&mut Progress, SchedError> {
        match self.alive.get_mut(&ticket) {
            Some(progress @ Progress::Running) => Ok(progress),
            _ => Err(SchedError::NotRunning { ticket, what }),
        }
    }

    fn expect(&mut self, busy: Busy, what: &'static str) -> Result<(), SchedError> {
        if self.busy != busy {
            return Err(SchedError::NotAsked(what));
        }
        self.busy = Busy::Nothing;
        Ok(())
    }

    fn end(&mut self, ticket: Ticket, end: End, commands: &mut Vec<Command>) {
        self.alive.remove(&ticket);
        commands.push(Command::Drop(ticket, end));
    }

    /// The version at which this stage ends, by count or by request.
    fn last(&self) -> u64 {
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
            && self.evaluated != Some(self.version)
            && (Self::due(self.settings.evaluate_every, self.version) || at_end)
    }

    fn checkpoint_due(&self) -> bool {
        self.saved != Some(self.version)
            && (Self::due(self.settings.checkpoint_every, self.version) || self.over())
    }

    fn advance(&mut self, commands: &mut Vec<Command>) {
        if self.finished || self.busy != Busy::Nothing {
            // Groups for later batches may still start while a batch trains, up to the bound of SCHED-1.
            if self.busy == Busy::Training {
                self.admit(commands);
            }
            return;
        }
        if self.evaluation_due() && self.stop_at.is_none() {
            self.busy = Busy::Evaluating;
            commands.push(Command::Evaluate(self.version));
            return;
        }
        if self.version.0 >= self.settings.batches {
            let surplus: Vec<Ticket> = self.alive.keys().copied().collect();
            for ticket in surplus {
                self.end(ticket, End::Surplus, commands);
            }
        }
        if self.checkpoint_due() {
            self.busy = Busy::Saving;
            commands.push(Command::Checkpoint(self.version));
            return;
        }
        if self.over() {
            self.finished = true;
            commands.push(Command::Finish);
            return;
        }
        self.drop_stale(commands);
        self.admit(commands);
        self.cut(commands);
    }

    fn drop_stale(&mut self, commands: &mut Vec<Command>) {
        let bound = self.version.0.saturating_sub(self.settings.max_staleness);
        let stale: Vec<Ticket> = self
            .alive
            .iter()
            .filter(|(_, p)| matches!(p, Progress::Ready(oldest, _) if oldest.0 < bound))
            .map(|(&t, _)| t)
            .collect();
        for ticket in stale {
            self.end(ticket, End::Stale, commands);
        }
    }

    fn admit(&mut self, commands: &mut Vec<Command>) {
        let s = &self.settings;
        let ahead = (self.version.0 + 1 + s.max_staleness).min(self.last());
        let bound = ahead * s.batch_groups + if ahead < self.last() { s.oversample } else { 0 };
        let trained = self.version.0 * s.batch_groups;
        let mut sum = trained + self.in_batch.len() as u64 + self.alive.len() as u64;
        while sum < bound {
            let ticket = self.next_ticket;
            self.next_ticket.0 += 1;
            self.alive.insert(ticket, Progress::Running);
            commands.push(Command::StartGroup(ticket));
            sum += 1;
        }
    }

    fn cut(&mut self, commands: &mut Vec<Command>) {
        let size = self.settings.batch_groups as usize;
        let tickets: Vec<Ticket> = match self.settings.cut_order {
            CutOrder::Ticket => self
                .alive
                .iter()
                .take(size)
                .take_while(|(_, p)| matches!(p, Progress::Ready(..)))
                .map(|(&t, _)| t)
                .collect(),
            CutOrder::Completion => {
                let mut ready: Vec<(u64, Ticket)> = self
                    .alive
                    .iter()
                    .filter_map(|(&t, p)| match p {
                        Progress::Ready(_, place) => Some((*place, t)),
                        Progress::Running => None,
                    })
                    .collect();
                ready.sort_unstable();
                ready.into_iter().take(size).map(|(_, t)| t).collect()
            }
        };
        if tickets.len() < size {
            return;
        }
        for ticket in &tickets {
            self.alive.remove(ticket);
        }
        self.in_batch.clone_from(&tickets);
        self.busy = Busy::Training;
        commands.push(Command::TrainBatch { batch: self.version.0, tickets });
        self.admit(commands);
    }
}
