//! Groups of a stage as recorded in `rollouts/` and in the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rloom_core::{Episode, Group, Task, Ticket};
use rloom_learn::GivenAdvantages;
use rloom_store::journal::{self, Record};
use rloom_telemetry::{
    Activity, Event, EventFile, EventLine, LoggedTrajectory, Metrics, StepFiles, TelemetryError, rollout_log,
};
use serde::Serialize;

use crate::RunError;

/// Place of a sample's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundIn {
    /// The rollouts of the step that trained on it.
    Rollouts {
        /// The step.
        step: u64,
    },
    /// The journal: no step has trained on it, or the file of the step is gone.
    Journal,
}

/// Record of a group.
#[derive(Debug)]
pub(crate) enum RecordedGroup {
    /// The rollouts of the step that trained on it.
    Trained { step: u64, lines: Vec<LoggedTrajectory> },
    /// The journal.
    Journal(JournalGroup),
}

/// A group of the journal.
#[derive(Debug, Default, Clone)]
pub(crate) struct JournalGroup {
    /// Complete episodes by sample.
    pub(crate) episodes: BTreeMap<u32, Episode>,
    /// The task, once the group is complete.
    pub(crate) task: Option<Task>,
    /// `None` while the group is in flight or waits for a batch.
    pub(crate) fate: Option<JournalFate>,
}

/// Fate of a group according to the journal.
#[derive(Debug, Clone)]
pub(crate) enum JournalFate {
    /// Replaced by a filter.
    Filtered,
    /// Failed for this reason.
    Failed(String),
    /// Part of a batch.
    Cut { batch: u64, is_trained: bool },
}

/// Recorded groups and batches of one stage.
#[derive(Debug)]
pub(crate) struct RecordedStage {
    files: StepFiles,
    groups: BTreeMap<Ticket, JournalGroup>,
    /// Groups of each batch, in training order.
    cuts: BTreeMap<u64, Vec<Ticket>>,
    /// Advantages of each batch from a Python function.
    advantages: BTreeMap<u64, GivenAdvantages>,
    /// Digests of the weights after each batch.
    weights: BTreeMap<u64, u64>,
}

impl RecordedStage {
    /// Reads the records of the stage called `name`, the one at `index` of the recipe, of the run in `directory`. `lines`
    /// are the surviving events of the run.
    pub(crate) fn read(
        directory: &Path,
        index: u32,
        name: &str,
        lines: &[&EventLine],
    ) -> Result<Self, RunError> {
        let recovered = journal::read(&directory.join("journal"), index)?;
        let mut groups: BTreeMap<Ticket, JournalGroup> = BTreeMap::new();
        let mut cuts: BTreeMap<u64, Vec<Ticket>> = BTreeMap::new();
        let (mut advantages, mut weights) = (BTreeMap::new(), BTreeMap::new());
        let mut new: Vec<(Ticket, u64)> = Vec::new();
        for record in recovered.snapshot.into_iter().chain(recovered.log) {
            match record {
                Record::Episode { ticket, sample, episode } => {
                    groups.entry(ticket).or_default().episodes.insert(sample, episode);
                }
                Record::Ready { ticket, task, .. } => groups.entry(ticket).or_default().task = Some(task),
                Record::Filtered { ticket } => {
                    groups.entry(ticket).or_default().fate = Some(JournalFate::Filtered);
                }
                Record::Failed { ticket, reason } => {
                    groups.entry(ticket).or_default().fate = Some(JournalFate::Failed(reason));
                }
                Record::Reusable { ticket, task, batch } => {
                    let fate = Some(JournalFate::Cut { batch, is_trained: true });
                    let group = groups.entry(ticket).or_default();
                    (group.task, group.fate) = (Some(task), fate);
                }
                Record::Cut { batch, tickets, reused, advantages: given } => {
                    new.extend(tickets.iter().map(|&ticket| (ticket, batch)));
                    let reused = reused.into_iter().map(|group| group.ticket);
                    cuts.insert(batch, tickets.into_iter().chain(reused).collect());
                    advantages.extend(given.map(|given| (batch, given)));
                }
                Record::Trained { batch, weights: digest, .. } => {
                    weights.insert(batch, digest);
                }
                Record::PartialEpisode { ticket, .. } => {
                    groups.entry(ticket).or_default();
                }
                Record::Evaluated { .. }
                | Record::Checkpointed { .. }
                | Record::StopRequested
                | Record::StopWithdrawn
                | Record::SnapshotEnd => {}
            }
        }
        for (ticket, batch) in new {
            let fate = JournalFate::Cut { batch, is_trained: weights.contains_key(&batch) };
            groups.entry(ticket).or_default().fate = Some(fate);
        }
        let files = StepFiles::new(directory, name, last_step(lines, name));
        Ok(Self { files, groups, cuts, advantages, weights })
    }

    /// Returns the record of a group.
    pub(crate) fn find(&self, ticket: u64) -> Result<Option<RecordedGroup>, RunError> {
        if let Some((step, lines)) = self.files.group(ticket)? {
            return Ok(Some(RecordedGroup::Trained { step, lines }));
        }
        Ok(self.groups.get(&Ticket(ticket)).cloned().map(RecordedGroup::Journal))
    }

    /// Trained steps whose rollouts were not kept.
    pub(crate) fn steps_without_rollouts(&self) -> Vec<u64> {
        self.files.missing()
    }

    /// Tickets of all recorded groups.
    pub(crate) fn tickets(&self) -> BTreeSet<u64> {
        self.files.tickets().into_iter().chain(self.groups.keys().map(|ticket| ticket.0)).collect()
    }

    /// Indices of a group's complete samples.
    pub(crate) fn samples(&self, ticket: u64) -> Vec<u64> {
        match self.find(ticket) {
            Ok(Some(RecordedGroup::Trained { lines, .. })) => {
                (0..rollout_log::episodes(lines).len() as u64).collect()
            }
            Ok(Some(RecordedGroup::Journal(group))) => {
                group.episodes.keys().map(|&sample| u64::from(sample)).collect()
            }
            Ok(None) | Err(_) => Vec::new(),
        }
    }

    /// Returns an episode and the place of its record.
    pub(crate) fn episode(&self, ticket: u64, sample: u32) -> Result<Option<(Episode, FoundIn)>, RunError> {
        Ok(match self.find(ticket)? {
            Some(RecordedGroup::Trained { step, lines }) => rollout_log::episodes(lines)
                .into_iter()
                .nth(sample as usize)
                .map(|episode| (episode, FoundIn::Rollouts { step })),
            Some(RecordedGroup::Journal(mut group)) => {
                group.episodes.remove(&sample).map(|episode| (episode, FoundIn::Journal))
            }
            None => None,
        })
    }

    /// True if the groups of a batch are recorded.
    pub(crate) fn has_batch(&self, batch: u64) -> bool {
        self.files.has(batch + 1) || self.cut(batch).is_some()
    }

    /// Returns the groups of a batch in training order, from the journal or from the rollouts of its step.
    pub(crate) fn batch(&self, batch: u64) -> Result<Option<Vec<Group>>, RunError> {
        if let Some(groups) = self.cut(batch) {
            return Ok(Some(groups));
        }
        if !self.files.has(batch + 1) {
            return Ok(None);
        }
        Ok(rollout_log::read(&self.files.path(batch + 1)).map(Some)?)
    }

    /// Advantages of a batch from a Python function, from the journal or from the rollouts of its step.
    pub(crate) fn advantages(&self, batch: u64) -> Result<Option<GivenAdvantages>, RunError> {
        if self.cuts.contains_key(&batch) || !self.files.has(batch + 1) {
            return Ok(self.advantages.get(&batch).cloned());
        }
        Ok(rollout_log::given_advantages(&self.files.path(batch + 1))?)
    }

    /// Digest of the weights after a batch, if the journal has it.
    pub(crate) fn weights(&self, batch: u64) -> Option<u64> {
        self.weights.get(&batch).copied()
    }

    fn cut(&self, batch: u64) -> Option<Vec<Group>> {
        let group = |&ticket: &Ticket| {
            let group = self.groups.get(&ticket)?;
            let episodes = group.episodes.values().cloned().collect();
            Some(Group { ticket, task: group.task.clone()?, episodes })
        };
        self.cuts.get(&batch)?.iter().map(group).collect()
    }
}

/// Returns the surviving events that the records of a run refer to: starts, the last step of each stage without its metrics,
/// and those of the group `ticket`.
pub(crate) fn outline_of(events: &EventFile, ticket: Option<u64>) -> Result<Vec<EventLine>, TelemetryError> {
    let mut last_steps: BTreeMap<String, EventLine> = BTreeMap::new();
    let mut lines = events.select(|line| {
        let is_kept = match &line.event {
            Event::RunStarted { .. } | Event::StageStarted { .. } => true,
            Event::GroupEnded { ticket: own, .. } => Some(*own) == ticket,
            Event::Activity { activity: Activity::Group, ticket: own, .. } => own.is_some() && *own == ticket,
            Event::Step { .. } => {
                if last_steps.get(&line.stage).is_none_or(|last| last.step <= line.step) {
                    let event = Event::Step { metrics: Metrics::new() };
                    last_steps.insert(line.stage.clone(), EventLine { event, ..line });
                }
                return None;
            }
            _ => false,
        };
        is_kept.then_some(line)
    })?;
    lines.extend(last_steps.into_values());
    Ok(lines)
}

/// The last step of a stage that was not repeated by a later attempt. Without any step in the events, which are telemetry,
/// every file counts.
fn last_step(lines: &[&EventLine], stage: &str) -> u64 {
    let steps = lines.iter().filter(|line| line.stage == stage && matches!(line.event, Event::Step { .. }));
    steps.map(|line| line.step).max().unwrap_or(u64::MAX)
}
