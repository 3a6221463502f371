//! What a stage generated and trained on, as its files have it: those of `rollouts/`, and the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rloom_core::{Episode, Group, Task, Ticket};
use serde::Serialize;

use crate::RunError;
use rloom_store::journal::{self, Record};
use rloom_telemetry::StepFiles;
use rloom_telemetry::{Event, EventLine};
use rloom_telemetry::{LoggedTrajectory, rollout_log};

/// Where a sample was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundIn {
    /// Among the rollouts of the step that it was trained on in.
    Rollouts {
        /// The step.
        step: u64,
    },
    /// In the journal: it is not trained on, or the file of its step is gone.
    Journal,
}

/// A group that was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// Among the rollouts of a step.
    Trained { step: u64, lines: Vec<LoggedTrajectory> },
    /// In the journal.
    Journaled(Journaled),
}

/// A group of the journal.
#[derive(Debug, Default, Clone)]
pub(crate) struct Journaled {
    /// Its episodes that are finished.
    pub(crate) episodes: BTreeMap<u32, Episode>,
    /// Known once it is complete.
    pub(crate) task: Option<Task>,
    /// What was decided about it; `None` while it is under way, or waits.
    pub(crate) fate: Option<JournalFate>,
}

/// What the journal says became of a group.
#[derive(Debug, Clone)]
pub(crate) enum JournalFate {
    /// It was replaced, because nothing can be learned from it.
    Filtered,
    /// It failed, and why.
    Failed(String),
    /// It is in a batch.
    Cut {
        /// The batch.
        batch: u64,
        /// Whether the batch is trained.
        trained: bool,
    },
}

/// The samples and batches of one stage.
#[derive(Debug)]
pub(crate) struct RecordedStage {
    files: StepFiles,
    groups: BTreeMap<Ticket, Journaled>,
    cuts: BTreeMap<u64, Vec<Ticket>>,
    /// Checksums of the weights that batches gave.
    weights: BTreeMap<u64, u64>,
}

impl RecordedStage {
    /// Reads the journal of the stage called `name` in place `index` of the recipe of the run in `directory`, whose
    /// surviving events are `lines`.
    pub(crate) fn read(
        directory: &Path,
        index: u32,
        name: &str,
        lines: &[&EventLine],
    ) -> Result<Self, RunError> {
        let recovered = journal::read(&directory.join("journal"), index)?;
        let mut groups: BTreeMap<Ticket, Journaled> = BTreeMap::new();
        let mut cuts: BTreeMap<u64, Vec<Ticket>> = BTreeMap::new();
        let mut weights = BTreeMap::new();
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
                Record::Cut { batch, tickets } => {
                    cuts.insert(batch, tickets);
                }
                Record::Trained { batch, weights: checksum, .. } => {
                    weights.insert(batch, checksum);
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
        for (&batch, tickets) in &cuts {
            for ticket in tickets {
                let fate = JournalFate::Cut { batch, trained: weights.contains_key(&batch) };
                groups.entry(*ticket).or_default().fate = Some(fate);
            }
        }
        let files = StepFiles::new(directory, name, last_step(lines, name));
        Ok(Self { files, groups, cuts, weights })
    }

    /// A group that is not unheard of.
    pub(crate) fn find(&self, ticket: u64) -> Result<Option<Found>, RunError> {
        if let Some((step, lines)) = self.files.group(ticket)? {
            return Ok(Some(Found::Trained { step, lines }));
        }
        Ok(self.groups.get(&Ticket(ticket)).cloned().map(Found::Journaled))
    }

    /// Everything that [`find`](Self::find) finds.
    pub(crate) fn tickets(&self) -> BTreeSet<u64> {
        self.files.tickets().into_iter().chain(self.groups.keys().map(|ticket| ticket.0)).collect()
    }

    /// The samples of a ticket that can be had.
    pub(crate) fn samples(&self, ticket: u64) -> Vec<u64> {
        match self.find(ticket) {
            Ok(Some(Found::Trained { lines, .. })) => {
                (0..rollout_log::episodes(lines).len() as u64).collect()
            }
            Ok(Some(Found::Journaled(group))) => {
                group.episodes.keys().map(|&sample| u64::from(sample)).collect()
            }
            Ok(None) | Err(_) => Vec::new(),
        }
    }

    /// An episode, and where it was found.
    pub(crate) fn episode(&self, ticket: u64, sample: u32) -> Result<Option<(Episode, FoundIn)>, RunError> {
        Ok(match self.find(ticket)? {
            Some(Found::Trained { step, lines }) => rollout_log::episodes(lines)
                .into_iter()
                .nth(sample as usize)
                .map(|episode| (episode, FoundIn::Rollouts { step })),
            Some(Found::Journaled(mut group)) => {
                group.episodes.remove(&sample).map(|episode| (episode, FoundIn::Journal))
            }
            None => None,
        })
    }

    /// Whether the groups of a batch are there.
    pub(crate) fn has_batch(&self, batch: u64) -> bool {
        self.files.has(batch + 1) || self.cut(batch).is_some()
    }

    /// The groups of a batch in training order: by the journal's cut, or as the rollouts of its step have them.
    pub(crate) fn batch(&self, batch: u64) -> Result<Option<Vec<Group>>, RunError> {
        if let Some(groups) = self.cut(batch) {
            return Ok(Some(groups));
        }
        if !self.files.has(batch + 1) {
            return Ok(None);
        }
        Ok(rollout_log::read(&self.files.path(batch + 1)).map(Some)?)
    }

    /// The checksum of the weights that a batch gave, where the journal has it.
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

/// The last step of a stage that survives. Events are telemetry: where they tell of none, every file counts.
fn last_step(lines: &[&EventLine], stage: &str) -> u64 {
    let steps = lines.iter().filter(|line| line.stage == stage && matches!(line.event, Event::Step { .. }));
    steps.map(|line| line.step).max().unwrap_or(u64::MAX)
}
