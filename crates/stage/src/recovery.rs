//! Replay of an earlier attempt: the recorded events give the same commands, and training on the same batches gives the
//! same weights.

use std::collections::BTreeMap;

use rloom_algo::FilterReason;
use rloom_core::{Episode, Group, Ticket};
use rloom_engine::{RolloutEngine, TrainEngine};
use rloom_learn::GivenAdvantages;
use rloom_sched::{InFlightWork, ReusedGroup, SchedulerEvent, SchedulerState};
use rloom_store::journal::Record;

use crate::groups::{GroupPart, StageGroups};
use crate::{Contradiction, StageError};
use crate::{JournaledEvent, Stage};

/// Restores the groups that a journal segment starts with, and repairs a state whose groups are missing.
pub fn restore_groups<R: RolloutEngine + 'static>(
    groups: &mut StageGroups<R>,
    snapshot: Vec<Record>,
    state: &mut SchedulerState,
) {
    let mut episodes: BTreeMap<Ticket, BTreeMap<u32, Episode>> = BTreeMap::new();
    for record in snapshot {
        match record {
            Record::Episode { ticket, sample, episode } => {
                episodes.entry(ticket).or_default().insert(sample, episode);
            }
            Record::PartialEpisode { ticket, sample, episode } => {
                groups.add(ticket, sample, GroupPart::Partial(episode));
            }
            Record::Ready { ticket, task, .. } => {
                let episodes = episodes.remove(&ticket).unwrap_or_default().into_values().collect();
                groups.add_ready(Group { ticket, task, episodes });
            }
            Record::Reusable { ticket, task, batch } => {
                let episodes = episodes.remove(&ticket).unwrap_or_default().into_values().collect();
                groups.reusable_mut().insert(Group { ticket, task, episodes }, batch);
            }
            _ => {}
        }
    }
    for (ticket, loose) in episodes {
        for (sample, episode) in loose {
            groups.add(ticket, sample, GroupPart::Episode(episode));
        }
    }
    let of_batch: &[Ticket] =
        if let InFlightWork::Training(tickets) = &state.in_flight { tickets } else { &[] };
    let known = |ticket: &Ticket| {
        of_batch.contains(ticket)
            || state.open_groups.binary_search_by_key(ticket, |group| group.ticket).is_ok()
    };
    groups.retain(known);
    let missing: Vec<Ticket> = state
        .open_groups
        .iter()
        .map(|group| group.ticket)
        .filter(|&ticket| !groups.is_ready(ticket))
        .collect();
    for ticket in missing {
        state.restart_group(ticket);
    }
    let is_lost = |reused: &ReusedGroup| !groups.reusable().contains(reused.ticket);
    if let InFlightWork::Training(tickets) = &state.in_flight
        && (tickets.iter().any(|&ticket| !groups.is_ready(ticket)) || state.reuse.drawn.iter().any(is_lost))
    {
        // Its groups are regenerated, and the batch is cut again.
        for &ticket in tickets {
            groups.take_ready(ticket);
        }
        state.restart_batch();
    }
    groups.reusable_mut().retain(|ticket| state.reuse.groups.contains_key(&ticket));
    // Those of the batch in flight are added when it is trained.
    let version = state.version.0;
    let kept = state.reuse.groups.iter().filter(|(_, group)| group.batch < version);
    let lost: Vec<Ticket> =
        kept.map(|(&ticket, _)| ticket).filter(|&ticket| !groups.reusable().contains(ticket)).collect();
    for ticket in lost {
        state.forget_reusable(ticket);
    }
}

/// A batch that an earlier attempt has cut.
#[derive(Debug, Default)]
pub(crate) struct RecordedCut {
    /// Its groups, in training order.
    pub(crate) tickets: Vec<Ticket>,
    /// Groups of earlier batches that it reuses.
    pub(crate) reused: Vec<ReusedGroup>,
    /// Advantages from a Python function.
    pub(crate) advantages: Option<GivenAdvantages>,
}

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Returns the next recorded event; `None` once all are replayed.
    pub(crate) async fn replay_next(&mut self) -> Result<Option<JournaledEvent>, StageError> {
        while let Some(record) = self.journal.next_record() {
            if let Some(event) = self.replay(record).await? {
                return Ok(Some(event));
            }
        }
        if !self.journal.is_live() {
            self.go_live().await?;
        }
        Ok(None)
    }

    /// Replays a record.
    async fn replay(&mut self, record: Record) -> Result<Option<JournaledEvent>, StageError> {
        match record {
            Record::Episode { ticket, sample, episode } => {
                self.groups.add(ticket, sample, GroupPart::Episode(episode));
            }
            Record::PartialEpisode { ticket, sample, episode } => {
                self.groups.add(ticket, sample, GroupPart::Partial(episode));
            }
            Record::Ready { ticket, task, .. } => {
                let Some((group, _)) = self.groups.assemble(ticket, task) else {
                    return Err(self.contradiction(Contradiction::GroupNotStarted { ticket: ticket.0 }));
                };
                let reason = self.verdict(&group);
                return self.admit_complete(group, reason).map(|event| Some(event.into()));
            }
            Record::Filtered { ticket } => {
                let Some(runner) = self.groups.source().rollouts() else { return Ok(None) };
                let task = runner
                    .task(self.scheduler.draw(ticket))
                    .map_err(|failure| self.group_error(ticket, failure))?;
                let Some((group, _)) = self.groups.assemble(ticket, task) else {
                    return Err(self.contradiction(Contradiction::GroupNotStarted { ticket: ticket.0 }));
                };
                // The decision of a function is not repeated.
                let by_function = self.context.training.functions.filters_groups();
                let reason = self.verdict(&group).or(by_function.then_some(FilterReason::Function));
                return self.admit_complete(group, reason).map(|event| Some(event.into()));
            }
            Record::Failed { ticket, reason } => {
                let failure = self.groups.failure(ticket, reason);
                return Ok(Some(self.replace_failed(ticket, failure).into()));
            }
            Record::Trained { batch, weights, .. } => {
                self.journal.expect(batch, weights);
                let requested = self.scheduler.counts().in_batch > 0;
                return self.work_done(requested, SchedulerEvent::BatchTrained).await.map(Some);
            }
            Record::Evaluated { .. } => {
                let requested = self.evaluation.is_pending() || !self.pending.is_empty();
                return self.work_done(requested, SchedulerEvent::Evaluated).await.map(Some);
            }
            Record::Checkpointed { .. } => {
                if !self.checkpoints.is_saving() && self.checkpoints.take_request() {
                    return Ok(Some(SchedulerEvent::Checkpointed.into()));
                }
                let requested = self.checkpoints.is_requested();
                return self.work_done(requested, SchedulerEvent::Checkpointed).await.map(Some);
            }
            // A cut is compared when its batch is cut again.
            Record::Cut { batch, tickets, .. } => {
                return Err(StageError::CutMismatch {
                    stage: self.stage_name(),
                    batch,
                    recorded: tickets.iter().map(|t| t.0).collect(),
                    now: Vec::new(),
                });
            }
            Record::StopRequested => {
                self.journal.set_stopping(true);
                return Ok(Some(SchedulerEvent::StopRequested.into()));
            }
            Record::StopWithdrawn => {
                self.journal.set_stopping(false);
                return Ok(Some(SchedulerEvent::StopWithdrawn.into()));
            }
            Record::Reusable { .. } | Record::SnapshotEnd => {}
        }
        Ok(None)
    }

    /// Waits for work that is recorded as done; it was requested if the journal belongs to this run.
    async fn work_done(
        &mut self,
        requested: bool,
        done: SchedulerEvent,
    ) -> Result<JournaledEvent, StageError> {
        if requested {
            let event = self.wait_for_event().await?;
            if event.event == done {
                return Ok(event);
            }
        }
        Err(self.contradiction(Contradiction::NotRequested { event: done }))
    }

    fn contradiction(&self, what: Contradiction) -> StageError {
        StageError::JournalContradicts { stage: self.stage_name(), what }
    }

    /// Returns the cut recorded at this point; `None` at the end of the records.
    pub(crate) fn recorded_cut(&mut self) -> Option<RecordedCut> {
        // A stopping run cuts no batch but keeps parts of groups in flight. A resumed one cuts first.
        while let Some(record) = self.journal.next_record() {
            let (ticket, sample, part) = match record {
                Record::Cut { tickets, reused, advantages, .. } => {
                    return Some(RecordedCut { tickets, reused, advantages });
                }
                Record::Episode { ticket, sample, episode } => (ticket, sample, GroupPart::Episode(episode)),
                Record::PartialEpisode { ticket, sample, episode } => {
                    (ticket, sample, GroupPart::Partial(episode))
                }
                // Nothing else can follow: no batch was cut here.
                _ => return Some(RecordedCut::default()),
            };
            // The group may have become stale at this cut.
            if self.scheduler.started(ticket).is_some() {
                self.groups.add(ticket, sample, part);
            }
        }
        None
    }

    /// Checks that retraining a batch gave the recorded weights.
    pub(crate) fn check_replayed(&mut self, batch: u64, digest: u64) -> Result<(), StageError> {
        let Some(recorded) = self.journal.unexpected(batch, digest) else { return Ok(()) };
        if self.journal.repeats_bits() {
            return Err(StageError::ReplayDiffers { stage: self.stage_name(), batch, recorded, now: digest });
        }
        self.reporter.warn(format!(
            "batch {batch}: retraining gave other weights than recorded; the numeric path of this machine differs, or the trainer does not repeat its results bit by bit"
        ));
        Ok(())
    }

    /// Ends the replay: groups in flight start now.
    async fn go_live(&mut self) -> Result<(), StageError> {
        if self.journal.go_live() {
            // That attempt died before it reached its end; this one continues.
            let record = Record::StopWithdrawn;
            self.pending.push_back(JournaledEvent::recorded(SchedulerEvent::StopWithdrawn, record));
        }
        if self.checkpoints.is_requested() && !self.checkpoints.is_saving() {
            self.checkpointed(self.scheduler.version());
        }
        self.check_pinned()?;
        self.load_pinned().await?;
        self.start_evaluation();
        self.warn_repeated_calls();
        self.launch_waiting()?;
        self.clock.restart(self.engine_statistics());
        self.stall.alive();
        self.note_rollouts();
        Ok(())
    }

    /// Says that effects of calls may be repeated: a turn is recorded once its calls have returned.
    fn warn_repeated_calls(&mut self) {
        let continued = self.groups.in_flight().len();
        let runner = self.groups.source().rollouts();
        let records = runner.is_some_and(|runner| runner.episodes().world().records_responses());
        if records && continued > 0 {
            self.reporter.warn(format!(
                "{continued} groups continue after their last recorded turns: calls of tools that ran when the run ended are \
                 made again"
            ));
        }
    }

    /// Checks that the weights of all groups in flight are available.
    fn check_pinned(&self) -> Result<(), StageError> {
        match self.weights.first_without_weights(self.groups.in_flight().keys().copied()) {
            None => Ok(()),
            Some(ticket) => Err(StageError::PinnedWeightsMissing {
                stage: self.stage_name(),
                ticket: ticket.0,
                version: self.weights.pinned_version(ticket).0,
                checkpoint: self.last_checkpoint(),
            }),
        }
    }
}
