//! What an earlier attempt recorded, told to the scheduler again: the same events give the same commands, and training
//! on the same batches the same weights.

use std::collections::{BTreeMap, VecDeque};

use rloom_core::{Episode, Group, Ticket};
use rloom_sched::{GroupStatus, InFlightWork, OpenGroup, SchedulerEvent, SchedulerState};

use super::groups::{Groups, Kept};
use super::{Source, Stage, Told};
use crate::RunError;
use crate::journal::Record;

/// The records that are still to be replayed.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    log: VecDeque<Record>,
    over: bool,
    /// Whether the attempt that is replayed was asked to stop, and has not come to its end yet.
    stopping: bool,
    /// Whether this machine computes the same bits as the one that recorded.
    same_isa: bool,
    /// The batch that is trained again, and the checksum of its weights, where they were recorded.
    expected: Option<(u64, u32)>,
}

impl Replay {
    pub(crate) fn new(log: Vec<Record>, same_isa: bool) -> Self {
        Self { log: log.into(), same_isa, ..Self::default() }
    }

    /// Whether the stage's end is that of an attempt that was asked to stop: the next attempt went on from there.
    pub(crate) fn ends_an_attempt(&mut self) -> bool {
        std::mem::take(&mut self.stopping)
    }

    /// Whether everything recorded has been told again: what happens from then on happens now.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

/// Puts what a segment begins with into `groups`, and mends a state whose groups are not there.
pub(crate) fn restore(groups: &mut Groups, head: Vec<Record>, state: &mut SchedulerState) {
    let mut episodes: BTreeMap<Ticket, BTreeMap<u32, Episode>> = BTreeMap::new();
    for record in head {
        match record {
            Record::Episode { ticket, sample, episode } => {
                episodes.entry(ticket).or_default().insert(sample, episode);
            }
            Record::Partial { ticket, sample, partial } => {
                groups.keep(ticket, sample, Kept::Partial(partial));
            }
            Record::Ready { ticket, task, .. } => {
                let episodes = episodes.remove(&ticket).unwrap_or_default().into_values().collect();
                groups.ready.insert(ticket, Group { ticket, task, episodes });
            }
            _ => {}
        }
    }
    for (ticket, loose) in episodes {
        for (sample, episode) in loose {
            groups.keep(ticket, sample, Kept::Episode(episode));
        }
    }
    let of_batch: &[Ticket] =
        if let InFlightWork::Training(tickets) = &state.in_flight { tickets } else { &[] };
    let known = |ticket: &Ticket| {
        of_batch.contains(ticket)
            || state.open_groups.binary_search_by_key(ticket, |group| group.ticket).is_ok()
    };
    groups.ready.retain(|ticket, _| known(ticket));
    groups.left.retain(|ticket, _| known(ticket));
    let lost: Vec<Ticket> = state
        .open_groups
        .iter()
        .map(|group| group.ticket)
        .filter(|t| !groups.ready.contains_key(t))
        .collect();
    for ticket in lost {
        state.restart_group(ticket);
    }
    if let InFlightWork::Training(tickets) = &state.in_flight
        && tickets.iter().any(|ticket| !groups.ready.contains_key(ticket))
    {
        // Its groups are made again, and the batch is cut again.
        let started = state.version;
        let running = |&ticket| OpenGroup { ticket, status: GroupStatus::Running { started } };
        state.open_groups.extend(tickets.iter().map(running));
        state.open_groups.sort_by_key(|group| group.ticket);
        for ticket in tickets {
            groups.ready.remove(ticket);
        }
        state.in_flight = InFlightWork::Nothing;
    }
}

impl Stage<'_, '_> {
    /// The next recorded event; `None` when there is none any more, from when on things happen.
    pub(super) async fn replay_next(&mut self) -> Result<Option<Told>, RunError> {
        while let Some(record) = self.replay.log.pop_front() {
            if let Some(event) = self.replayed(record).await? {
                return Ok(Some(event));
            }
        }
        if !self.replay.over {
            self.go_live().await?;
        }
        Ok(None)
    }

    /// Takes in a record.
    async fn replayed(&mut self, record: Record) -> Result<Option<Told>, RunError> {
        match record {
            Record::Episode { ticket, sample, episode } => {
                self.groups.keep(ticket, sample, Kept::Episode(episode));
            }
            Record::Partial { ticket, sample, partial } => {
                self.groups.keep(ticket, sample, Kept::Partial(partial));
            }
            Record::Ready { ticket, task, .. } => {
                let Some((group, _)) = self.groups.assemble(ticket, task) else {
                    return Err(self.not_started(ticket));
                };
                return self.arrived(group).map(|event| Some(event.into()));
            }
            Record::Filtered { ticket } => {
                let Source::Rollouts(source) = &self.parts.source else { return Ok(None) };
                let task = source.task(ticket).map_err(|e| RunError::Setup(e.reason))?;
                let Some((group, _)) = self.groups.assemble(ticket, task) else {
                    return Err(self.not_started(ticket));
                };
                return self.arrived(group).map(|event| Some(event.into()));
            }
            Record::Failed { ticket, reason } => {
                let failure = self.failure(ticket, reason);
                return Ok(Some(self.replaced_after_failure(ticket, failure).into()));
            }
            Record::Trained { batch, weights } => {
                self.replay.expected = Some((batch, weights));
                let asked = self.scheduler.counts().in_batch > 0;
                return self.work_done(asked, SchedulerEvent::BatchTrained).await.map(Some);
            }
            Record::Evaluated { .. } => {
                let asked = self.evaluation.is_some() || !self.pending.is_empty();
                return self.work_done(asked, SchedulerEvent::Evaluated).await.map(Some);
            }
            Record::Checkpointed { .. } => {
                if self.saving.is_none() && std::mem::take(&mut self.checkpoint_asked) {
                    return Ok(Some(SchedulerEvent::Checkpointed.into()));
                }
                return self.work_done(self.checkpoint_asked, SchedulerEvent::Checkpointed).await.map(Some);
            }
            // A cut is looked at when its batch is cut again.
            Record::Cut { batch, tickets } => {
                return Err(RunError::CutMismatch {
                    stage: self.parts.outline.name.clone(),
                    batch,
                    recorded: tickets.iter().map(|t| t.0).collect(),
                    now: Vec::new(),
                });
            }
            Record::StopRequested => {
                self.replay.stopping = true;
                return Ok(Some(SchedulerEvent::StopRequested.into()));
            }
            Record::StopWithdrawn => {
                self.replay.stopping = false;
                return Ok(Some(SchedulerEvent::StopWithdrawn.into()));
            }
            Record::Head => {}
        }
        Ok(None)
    }

    /// Waits for what is recorded as done, which was asked for if the history is this run's.
    async fn work_done(&mut self, asked: bool, done: SchedulerEvent) -> Result<Told, RunError> {
        if asked {
            let told = self.wait_for_event().await?;
            if told.event == done {
                return Ok(told);
            }
        }
        Err(self.contradiction(&format!("of {done:?}, which was not asked for")))
    }

    fn not_started(&self, ticket: Ticket) -> RunError {
        self.contradiction(&format!("of group {}, which was not started", ticket.0))
    }

    fn contradiction(&self, what: &str) -> RunError {
        RunError::Setup(format!(
            "stage `{}`: the journal tells {what}\nhint: the configuration or the binary has changed since; start a new \
             run",
            self.parts.outline.name
        ))
    }

    /// The cut that was recorded at this place; `None` when the record ends here.
    pub(super) fn recorded_cut(&mut self) -> Option<Vec<Ticket>> {
        // A run that is stopped cuts no batch any more, but keeps what there is of groups under way. Resumed, it cuts
        // first.
        while let Some(record) = self.replay.log.pop_front() {
            let (ticket, sample, kept) = match record {
                Record::Cut { tickets, .. } => return Some(tickets),
                Record::Episode { ticket, sample, episode } => (ticket, sample, Kept::Episode(episode)),
                Record::Partial { ticket, sample, partial } => (ticket, sample, Kept::Partial(partial)),
                // Nothing like this follows: no batch was cut here.
                _ => return Some(Vec::new()),
            };
            // At this cut it may have been found too old.
            if self.scheduler.started(ticket).is_some() {
                self.groups.keep(ticket, sample, kept);
            }
        }
        None
    }

    /// Checks that training again gave the recorded weights.
    pub(super) fn check_replayed(&mut self, batch: u64, checksum: u32) -> Result<(), RunError> {
        match self.replay.expected.take() {
            Some((recorded, expected)) if recorded == batch && expected != checksum => {
                if self.replay.same_isa {
                    return Err(RunError::ReplayDiffers {
                        stage: self.parts.outline.name.clone(),
                        batch,
                        recorded: expected,
                        now: checksum,
                    });
                }
                self.events.warn(format!(
                    "batch {batch}: training again gave other weights than before, on another instruction set"
                ));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Everything recorded has been told: groups that are under way start now.
    async fn go_live(&mut self) -> Result<(), RunError> {
        self.replay.over = true;
        if std::mem::take(&mut self.replay.stopping) {
            // That attempt died before it got to its end; this one goes on.
            self.pending.push_back(Told::recorded(SchedulerEvent::StopWithdrawn, Record::StopWithdrawn));
        }
        if self.checkpoint_asked && self.saving.is_none() {
            self.checkpointed(self.scheduler.version());
        }
        self.check_pinned()?;
        self.load_pinned().await?;
        self.begin_evaluation();
        self.launch_waiting()?;
        self.watch.begin(self.engine_statistics());
        self.watch_rollouts();
        Ok(())
    }
}
