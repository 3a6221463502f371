//! Groups of a stage: running, complete, interrupted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use rloom_collect::{
    DemonstrationSource, GroupFailure, GroupProgress, GroupRunner, GroupUpdate, RecordedSource,
};
use rloom_core::{Draw, Episode, Group, PolicyId, PolicyVersion, Task, Ticket};
use rloom_engine::RolloutEngine;
use rloom_store::journal::{PartialEpisode, Record};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use crate::policies::StagePolicies;
use crate::reuse::ReusableGroups;
use crate::trainer::panic_message;

/// Source of a stage's groups.
#[derive(Debug)]
pub enum GroupSource<R> {
    /// Demonstrations; nothing is sampled.
    Demonstrations(DemonstrationSource),
    /// Sampled and scored groups.
    Rollouts(Arc<GroupRunner<R>>),
    /// Groups that another run has sampled and scored.
    Recorded(RecordedSource),
}

impl<R: RolloutEngine + 'static> GroupSource<R> {
    /// True if the groups are sampled.
    pub fn samples(&self) -> bool {
        matches!(self, Self::Rollouts(_))
    }

    /// True if the groups have rewards.
    pub fn is_scored(&self) -> bool {
        matches!(self, Self::Rollouts(_) | Self::Recorded(_))
    }

    /// The runner of sampled groups.
    pub fn rollouts(&self) -> Option<&Arc<GroupRunner<R>>> {
        match self {
            Self::Rollouts(runner) => Some(runner),
            Self::Demonstrations(_) | Self::Recorded(_) => None,
        }
    }
}

/// A group that is not complete.
#[derive(Debug, Default)]
pub(crate) struct RunningGroup {
    episodes: BTreeMap<u32, Episode>,
    partials: BTreeMap<u32, PartialEpisode>,
    /// Place of its task in the order of the stage.
    draw: Draw,
    /// Number and handle of its task, once launched.
    task: Option<(u64, AbortHandle)>,
    started: Option<Instant>,
}

impl RunningGroup {
    /// Time at which it was launched.
    pub(crate) fn started(&self) -> Option<Instant> {
        self.started
    }

    /// Samples that are scored.
    pub(crate) fn scored(&self) -> impl Iterator<Item = u32> {
        self.episodes.keys().copied()
    }

    /// Its parts, to continue from.
    fn progress(&self) -> GroupProgress {
        GroupProgress { done: self.episodes.clone(), partials: self.partials.clone() }
    }

    fn records(&self, ticket: Ticket) -> impl Iterator<Item = Record> {
        let episodes = self.episodes.iter().map(move |(&sample, episode)| Record::Episode {
            ticket,
            sample,
            episode: episode.clone(),
        });
        let partials = self.partials.iter().map(move |(&sample, partial)| Record::PartialEpisode {
            ticket,
            sample,
            episode: partial.clone(),
        });
        episodes.chain(partials)
    }
}

/// Identifies the task of a group: a ticket that starts again gets another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskId {
    ticket: Ticket,
    number: u64,
}

/// Message from the task of a group.
#[derive(Debug)]
pub(crate) struct GroupMessage {
    from: TaskId,
    content: MessageContent,
}

#[derive(Debug)]
enum MessageContent {
    Update(GroupUpdate),
    Complete(Task),
    Stopped,
    Failed(GroupFailure),
}

/// Wakes the driver for a group.
#[derive(Debug)]
pub(crate) enum GroupEvent {
    Message(GroupMessage),
    /// A task ended; an error if it was cancelled or panicked.
    Ended(Result<(Id, ()), JoinError>),
}

/// Consequence of an event of the current task of a group.
#[derive(Debug)]
pub(crate) enum GroupChange {
    /// An episode was scored or interrupted.
    Update(Ticket, GroupUpdate),
    /// All episodes are scored.
    Complete(Ticket, Task),
    /// The group failed.
    Failed(Ticket, GroupFailure),
    /// The group stopped without being complete.
    Stopped(Ticket),
}

/// Part of a group, as generated or recovered from the journal.
#[derive(Debug)]
pub(crate) enum GroupPart {
    Episode(Episode),
    Partial(PartialEpisode),
}

/// The groups of a stage that have not ended, and their tasks.
#[derive(Debug)]
pub struct StageGroups<R> {
    source: GroupSource<R>,
    /// Started and not complete.
    in_flight: BTreeMap<Ticket, RunningGroup>,
    /// Complete and not in a trained batch.
    ready: BTreeMap<Ticket, Group>,
    /// Parts from earlier attempts of groups that have not been started again.
    recovered: BTreeMap<Ticket, RunningGroup>,
    /// Trained groups that later batches may reuse.
    reusable: ReusableGroups,
    tasks: JoinSet<()>,
    task_ids: HashMap<Id, TaskId>,
    sender: UnboundedSender<GroupMessage>,
    receiver: UnboundedReceiver<GroupMessage>,
    launches: u64,
}

impl<R: RolloutEngine + 'static> StageGroups<R> {
    /// Creates a table without groups.
    pub fn new(source: GroupSource<R>) -> Self {
        let (sender, receiver) = unbounded_channel();
        Self {
            source,
            in_flight: BTreeMap::new(),
            ready: BTreeMap::new(),
            recovered: BTreeMap::new(),
            reusable: ReusableGroups::default(),
            tasks: JoinSet::new(),
            task_ids: HashMap::new(),
            sender,
            receiver,
            launches: 0,
        }
    }

    pub(crate) fn source(&self) -> &GroupSource<R> {
        &self.source
    }

    /// Started groups that are not complete.
    pub(crate) fn in_flight(&self) -> &BTreeMap<Ticket, RunningGroup> {
        &self.in_flight
    }

    /// Number of groups whose tasks run.
    pub(crate) fn running(&self) -> usize {
        self.in_flight.values().filter(|group| group.task.is_some()).count()
    }

    /// Number of complete groups, and number of scored episodes of incomplete ones.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let episodes = self.in_flight.values().map(|group| group.episodes.len() as u64).sum();
        (self.ready.len() as u64, episodes)
    }

    /// Starts a group with the parts that exist; [`launch`](Self::launch) runs it.
    pub(crate) fn start(&mut self, ticket: Ticket, draw: Draw) {
        let recovered = self.recovered.remove(&ticket).unwrap_or_default();
        if let GroupSource::Rollouts(runner) = &self.source {
            // With the weights of this event of the scheduler, which a resumed run repeats.
            runner.episodes().policies().begin(ticket, &recovered.progress());
        }
        self.in_flight.insert(ticket, RunningGroup { draw, ..recovered });
    }

    /// Started groups whose tasks do not run.
    pub(crate) fn waiting(&self) -> Vec<Ticket> {
        let waiting = self.in_flight.iter().filter(|(_, group)| group.task.is_none());
        waiting.map(|(&ticket, _)| ticket).collect()
    }

    /// Spawns the task of a started group.
    pub(crate) fn launch(&mut self, ticket: Ticket) -> Result<(), GroupFailure> {
        let GroupSource::Rollouts(runner) = &self.source else { return Ok(()) };
        let runner = Arc::clone(runner);
        let Some(group) = self.in_flight.get_mut(&ticket) else { return Ok(()) };
        let task = runner.task(group.draw)?;
        let progress = group.progress();
        self.launches += 1;
        let from = TaskId { ticket, number: self.launches };
        let sender = self.sender.clone();
        let handle = self.tasks.spawn(async move {
            // The receiver is gone once the stage has ended.
            let send = |content| drop(sender.send(GroupMessage { from, content }));
            let result =
                runner.run(ticket, &task, progress, &|update| send(MessageContent::Update(update))).await;
            send(match result {
                Ok(true) => MessageContent::Complete(task),
                Ok(false) => MessageContent::Stopped,
                Err(failure) => MessageContent::Failed(failure),
            });
        });
        self.task_ids.insert(handle.id(), from);
        group.task = Some((from.number, handle));
        group.started = Some(Instant::now());
        Ok(())
    }

    /// Resolves to the next event of a group; pending without one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> GroupEvent {
        tokio::select! {
            biased;
            Some(message) = self.receiver.recv() => GroupEvent::Message(message),
            Some(ended) = self.tasks.join_next_with_id() => GroupEvent::Ended(ended),
        }
    }

    /// Interprets an event; `None` if it concerns no current task.
    pub(crate) fn interpret(&mut self, event: GroupEvent) -> Option<GroupChange> {
        let (from, content) = match event {
            GroupEvent::Message(GroupMessage { from, content }) => (from, content),
            GroupEvent::Ended(Ok((id, ()))) => {
                self.task_ids.remove(&id);
                return None;
            }
            GroupEvent::Ended(Err(error)) => {
                let from = self.task_ids.remove(&error.id())?;
                if error.is_cancelled() {
                    return None;
                }
                let reason = format!("its task panicked: {}", panic_message(error.into_panic().as_ref()));
                (from, MessageContent::Failed(self.failure(from.ticket, reason)))
            }
        };
        // Messages sent before their group was cancelled are dropped.
        self.is_current(from).then_some(match content {
            MessageContent::Update(update) => GroupChange::Update(from.ticket, update),
            MessageContent::Complete(task) => GroupChange::Complete(from.ticket, task),
            MessageContent::Failed(failure) => GroupChange::Failed(from.ticket, failure),
            MessageContent::Stopped => GroupChange::Stopped(from.ticket),
        })
    }

    /// True if a message is from the current task of its group.
    fn is_current(&self, from: TaskId) -> bool {
        let task = self.in_flight.get(&from.ticket).and_then(|group| group.task.as_ref());
        task.is_some_and(|(number, _)| *number == from.number)
    }

    /// The failure of a group whose task index nothing has named.
    pub(crate) fn failure(&self, ticket: Ticket, reason: String) -> GroupFailure {
        let draw = self.in_flight.get(&ticket).map(|group| group.draw);
        let runner = self.source.rollouts();
        let task = runner.zip(draw).map_or(ticket.0, |(runner, draw)| runner.task_index(draw));
        GroupFailure { task, cause: reason.into() }
    }

    /// Notes that the task of a group has stopped.
    pub(crate) fn stopped(&mut self, ticket: Ticket) {
        if let Some(group) = self.in_flight.get_mut(&ticket) {
            group.task = None;
        }
    }

    /// Adds a part to its group, started or not.
    pub(crate) fn add(&mut self, ticket: Ticket, sample: u32, part: GroupPart) {
        let group = match self.in_flight.get_mut(&ticket) {
            Some(group) => group,
            None => self.recovered.entry(ticket).or_default(),
        };
        match part {
            GroupPart::Episode(episode) => {
                group.partials.remove(&sample);
                group.episodes.insert(sample, episode);
            }
            GroupPart::Partial(partial) => {
                group.partials.insert(sample, partial);
            }
        }
    }

    /// Removes a complete group from those in flight. Returns it with the time at which it was launched.
    pub(crate) fn assemble(&mut self, ticket: Ticket, task: Task) -> Option<(Group, Option<Instant>)> {
        let RunningGroup { episodes, started, .. } = self.in_flight.remove(&ticket)?;
        self.forget_opponents(ticket);
        let episodes = episodes.into_values().collect();
        Some((Group { ticket, task, episodes }, started))
    }

    /// Adds a complete group.
    pub(crate) fn add_ready(&mut self, group: Group) {
        self.ready.insert(group.ticket, group);
    }

    /// True if the group is complete.
    pub(crate) fn is_ready(&self, ticket: Ticket) -> bool {
        self.ready.contains_key(&ticket)
    }

    /// Removes a complete group.
    pub(crate) fn take_ready(&mut self, ticket: Ticket) -> Option<Group> {
        self.ready.remove(&ticket)
    }

    /// Trained groups that later batches may reuse.
    pub(crate) fn reusable(&self) -> &ReusableGroups {
        &self.reusable
    }

    /// Trained groups that later batches may reuse.
    pub(crate) fn reusable_mut(&mut self) -> &mut ReusableGroups {
        &mut self.reusable
    }

    /// Keeps only the complete and recovered groups for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Ticket) -> bool) {
        self.ready.retain(|ticket, _| keep(ticket));
        self.recovered.retain(|ticket, _| keep(ticket));
    }

    /// Removes a group that failed.
    pub(crate) fn remove_failed(&mut self, ticket: Ticket) {
        self.in_flight.remove(&ticket);
        self.forget_opponents(ticket);
    }

    fn forget_opponents(&self, ticket: Ticket) {
        if let Some(runner) = self.source.rollouts() {
            runner.episodes().policies().end(ticket);
        }
    }

    /// Removes a group and cancels its task.
    pub(crate) fn cancel(&mut self, ticket: Ticket) {
        self.ready.remove(&ticket);
        self.recovered.remove(&ticket);
        self.forget_opponents(ticket);
        if let Some(RunningGroup { task: Some((_, handle)), .. }) = self.in_flight.remove(&ticket) {
            handle.abort();
        }
    }

    /// Returns the groups among `alive` and those that later batches may reuse as the records that a journal segment starts
    /// with. `version` stands for the version of a group without policy tokens.
    pub(crate) fn records(
        &self,
        alive: &BTreeSet<Ticket>,
        policy: PolicyId,
        policies: &StagePolicies,
        version: PolicyVersion,
    ) -> Vec<Record> {
        let mut records: Vec<Record> = self.reusable.records().collect();
        if !self.source.samples() {
            return records;
        }
        for (&ticket, group) in self.ready.iter().filter(|(ticket, _)| alive.contains(ticket)) {
            for (sample, episode) in (0..).zip(&group.episodes) {
                records.push(Record::Episode { ticket, sample, episode: episode.clone() });
            }
            let oldest = policies.oldest_version(group).unwrap_or(version);
            records.push(ready_record(group, policy, oldest));
        }
        let incomplete = self.in_flight.iter().chain(&self.recovered);
        for (&ticket, group) in incomplete.filter(|(ticket, _)| alive.contains(ticket)) {
            records.extend(group.records(ticket));
        }
        records
    }
}

/// The record of a complete group whose oldest trained version is `oldest`.
pub(crate) fn ready_record(group: &Group, policy: PolicyId, oldest: PolicyVersion) -> Record {
    Record::Ready { policy, ticket: group.ticket, task: group.task.clone(), oldest }
}
