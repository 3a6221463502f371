//! Groups under way: started, told of, complete, replaced, let go.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rloom_config::OnFailure;
use rloom_core::{Episode, Group, Role, Task, Ticket};
use rloom_rollout::{Abort, RolloutEngine};
use rloom_sched::SchedulerEvent;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::{Source, Stage, TICK, Told};
use crate::RunError;
use crate::episodes::{GroupFailure, GroupNews, Leftover};
use crate::events::{Activity, Lane};
use crate::journal::{Partial, Record};
use crate::trainer::message;

/// The groups of a stage that have not ended.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Started and not complete.
    pub(super) under_way: BTreeMap<Ticket, UnderWay>,
    /// Complete, until they are trained on.
    pub(super) ready: BTreeMap<Ticket, Group>,
    /// What earlier attempts left of groups that will be started again.
    pub(super) left: BTreeMap<Ticket, UnderWay>,
    tasks: JoinSet<()>,
    names: HashMap<Id, Attempt>,
    tell: UnboundedSender<News>,
    news: UnboundedReceiver<News>,
    attempts: u64,
}

/// A group that is being made.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    pub(super) episodes: BTreeMap<u32, Episode>,
    pub(super) partials: BTreeMap<u32, Partial>,
    /// Its task, once it has been launched.
    task: Option<(u64, AbortHandle)>,
    pub(super) started: Option<Instant>,
}

/// A group's task: a ticket that is started again has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt {
    ticket: Ticket,
    number: u64,
}

/// What a group's task says.
#[derive(Debug)]
pub(super) struct News {
    from: Attempt,
    what: What,
}

#[derive(Debug)]
enum What {
    Of(GroupNews),
    Complete(Task),
    Stopped,
    Failed(GroupFailure),
}

/// What wakes the driver on account of groups.
#[derive(Debug)]
pub(super) enum GroupEvent {
    News(News),
    /// A task ended; with an error when it was cancelled or panicked.
    Ended(Result<(Id, ()), JoinError>),
}

impl Default for Groups {
    fn default() -> Self {
        let (tell, news) = unbounded_channel();
        Self {
            under_way: BTreeMap::new(),
            ready: BTreeMap::new(),
            left: BTreeMap::new(),
            tasks: JoinSet::new(),
            names: HashMap::new(),
            tell,
            news,
            attempts: 0,
        }
    }
}

impl Groups {
    /// The next thing that groups say; never, when there is none. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> GroupEvent {
        tokio::select! {
            biased;
            Some(news) = self.news.recv() => GroupEvent::News(news),
            Some(ended) = self.tasks.join_next_with_id() => GroupEvent::Ended(ended),
        }
    }

    /// Whether it is the present attempt at a group that speaks, and not one that was let go before.
    fn is_current(&self, from: Attempt) -> bool {
        let task = self.under_way.get(&from.ticket).and_then(|group| group.task.as_ref());
        task.is_some_and(|(number, _)| *number == from.number)
    }

    /// Groups whose tasks are at work.
    pub(super) fn at_work(&self) -> usize {
        self.under_way.values().filter(|u| u.task.is_some()).count()
    }

    /// Puts an episode or what there is of it to its group, started or not.
    pub(super) fn keep(&mut self, ticket: Ticket, sample: u32, news: Kept) {
        let group = match self.under_way.get_mut(&ticket) {
            Some(group) => group,
            None => self.left.entry(ticket).or_default(),
        };
        match news {
            Kept::Episode(episode) => {
                group.partials.remove(&sample);
                group.episodes.insert(sample, episode);
            }
            Kept::Partial(partial) => {
                group.partials.insert(sample, partial);
            }
        }
    }

    /// Takes a complete group out of those under way.
    pub(super) fn assemble(&mut self, ticket: Ticket, task: Task) -> Option<(Group, UnderWay)> {
        let mut under_way = self.under_way.remove(&ticket)?;
        let episodes = std::mem::take(&mut under_way.episodes).into_values().collect();
        Some((Group { ticket, task, episodes }, under_way))
    }
}

/// Part of a group.
#[derive(Debug)]
pub(super) enum Kept {
    Episode(Episode),
    Partial(Partial),
}

impl Stage<'_, '_> {
    /// Starts a group, with what there is of it.
    pub(super) async fn start(&mut self, ticket: Ticket) -> Result<(), RunError> {
        if let Source::Demonstrations(source) = &self.parts.source {
            let version = self.scheduler.version();
            let group = source.group(ticket).await.map_err(|e| self.group_failed(ticket, e))?;
            self.groups.ready.insert(ticket, group);
            self.pending.push_back(SchedulerEvent::GroupReady { ticket, oldest: version }.into());
            return Ok(());
        }
        let left = self.groups.left.remove(&ticket).unwrap_or_default();
        self.groups.under_way.insert(ticket, left);
        if self.replay.is_over() {
            self.launch(ticket)?;
        }
        Ok(())
    }

    /// Launches the groups that were started and wait: for the end of a replay, or for the weights of their version.
    pub(super) fn launch_waiting(&mut self) -> Result<(), RunError> {
        let waiting = self.groups.under_way.iter().filter(|(_, group)| group.task.is_none());
        let waiting: Vec<Ticket> = waiting.map(|(&ticket, _)| ticket).collect();
        waiting.into_iter().try_for_each(|ticket| self.launch(ticket))
    }

    fn launch(&mut self, ticket: Ticket) -> Result<(), RunError> {
        if !self.may_run(ticket) {
            return Ok(());
        }
        let Source::Rollouts(source) = &self.parts.source else { return Ok(()) };
        let source = Arc::clone(source);
        let task = source.task(ticket).map_err(|e| self.group_failed(ticket, e))?;
        let groups = &mut self.groups;
        let Some(group) = groups.under_way.get_mut(&ticket) else { return Ok(()) };
        let left =
            Leftover { done: group.episodes.keys().copied().collect(), partials: group.partials.clone() };
        groups.attempts += 1;
        let from = Attempt { ticket, number: groups.attempts };
        let channel = groups.tell.clone();
        let handle = groups.tasks.spawn(async move {
            // Nobody listens any more when the stage has ended.
            let say = |what| drop(channel.send(News { from, what }));
            let made = source.run(ticket, &task, left, &|news| say(What::Of(news))).await;
            say(match made {
                Ok(true) => What::Complete(task),
                Ok(false) => What::Stopped,
                Err(failure) => What::Failed(failure),
            });
        });
        groups.names.insert(handle.id(), from);
        group.task = Some((from.number, handle));
        group.started = Some(Instant::now());
        Ok(())
    }

    /// Takes in what groups say; the scheduler is to hear of it when a group is complete or has failed.
    pub(super) fn group_event(&mut self, event: GroupEvent) -> Result<Option<Told>, RunError> {
        let News { from, what } = match event {
            GroupEvent::News(news) => news,
            GroupEvent::Ended(Ok((id, ()))) => {
                self.groups.names.remove(&id);
                return Ok(None);
            }
            GroupEvent::Ended(Err(error)) => {
                let Some(from) = self.groups.names.remove(&error.id()) else { return Ok(None) };
                if error.is_cancelled() {
                    return Ok(None);
                }
                let reason = format!("its task panicked: {}", message(error.into_panic().as_ref()));
                News { from, what: What::Failed(self.failure(from.ticket, reason)) }
            }
        };
        if !self.groups.is_current(from) {
            // It was let go, and has said this before it heard of that.
            return Ok(None);
        }
        let ticket = from.ticket;
        self.watch.heard();
        match what {
            What::Of(news) => {
                self.group_news(ticket, news)?;
                Ok(None)
            }
            What::Complete(task) => self.complete(ticket, task).map(Some),
            What::Failed(failure) => self.failed(ticket, failure).map(Some),
            What::Stopped => Ok(None),
        }
    }

    fn group_news(&mut self, ticket: Ticket, news: GroupNews) -> Result<(), RunError> {
        let (record, kept, sample) = match news {
            GroupNews::Episode { sample, episode, reward_time } => {
                self.watch.scored(episode.policy_tokens(), reward_time);
                (Record::Episode { ticket, sample, episode: episode.clone() }, Kept::Episode(episode), sample)
            }
            GroupNews::Partial { sample, partial } => {
                (Record::Partial { ticket, sample, partial: partial.clone() }, Kept::Partial(partial), sample)
            }
        };
        self.record(&record)?;
        self.groups.keep(ticket, sample, kept);
        Ok(())
    }

    fn complete(&mut self, ticket: Ticket, task: Task) -> Result<Told, RunError> {
        let Some((group, made)) = self.groups.assemble(ticket, task) else {
            return Err(RunError::Setup(format!("group {} is complete and was not started", ticket.0)));
        };
        let oldest = group.oldest_version().unwrap_or(self.scheduler.version());
        if let Some(started) = made.started {
            self.activity(Lane::Rollout, Activity::Group, started, Instant::now(), oldest.0, Some(ticket.0));
        }
        let record = Record::Ready { ticket, task: group.task.clone(), oldest };
        let happened = self.arrived(group)?;
        Ok(match happened {
            SchedulerEvent::GroupFiltered(_) => Told::recorded(happened, Record::Filtered { ticket }),
            _ => Told::recorded(happened, record),
        })
    }

    /// Takes a group that is generated and scored, or says that another is to come in its place. The same group always
    /// has the same verdict, so a resumed run replaces the same ones.
    pub(super) fn arrived(&mut self, group: Group) -> Result<SchedulerEvent, RunError> {
        let ticket = group.ticket;
        self.drawn.tokens += group.episodes.iter().map(Episode::policy_tokens).sum::<usize>() as u64;
        let filters = self.parts.training.algorithm.filters;
        let trained = group.episodes.iter().filter(|e| e.role == Role::Train);
        let rewards: Vec<Option<f64>> = trained.clone().map(|e| e.rewards.total()).collect();
        let rule = self.parts.training.outcome;
        let outcomes: Vec<Option<f64>> = trained.map(|e| rule.outcome(&e.rewards)).collect();
        let Some(reason) = filters.verdict(&outcomes, &rewards) else {
            let oldest = group.oldest_version().unwrap_or(self.scheduler.version());
            self.groups.ready.insert(ticket, group);
            return Ok(SchedulerEvent::GroupReady { ticket, oldest });
        };
        self.group_ended(ticket.0, "filtered", Some(reason.name().to_owned()));
        *self.drawn.filtered.entry(reason.name().to_owned()).or_default() += 1;
        let filtered: u64 = self.drawn.filtered.values().sum();
        let batch = self.parts.groups_per_batch;
        if filtered + batch > u64::from(filters.max_draws) * batch * self.batches_ahead() {
            return Err(RunError::NothingLeft {
                stage: self.parts.outline.name.clone(),
                step: self.scheduler.version().0 + 1,
                filtered: self.drawn.filtered.iter().map(|(name, n)| format!("{n} {name}")).collect(),
                draws: filters.max_draws,
                checkpoint: self.last_good(),
            });
        }
        Ok(SchedulerEvent::GroupFiltered(ticket))
    }

    /// Batches that groups are made for before the next one is trained: limits per batch hold for all of them.
    fn batches_ahead(&self) -> u64 {
        1 + self.parts.schedule.max_staleness
    }

    /// A group that could not be made: the end of the run, or another in its place.
    fn failed(&mut self, ticket: Ticket, failure: GroupFailure) -> Result<Told, RunError> {
        if self.parts.schedule.on_failure == OnFailure::Stop {
            return Err(self.group_failed(ticket, failure));
        }
        if self.drawn.failed >= self.parts.schedule.max_failures * self.batches_ahead() {
            // Not recorded: whoever resumes tries this one again.
            return Err(RunError::TooManyFailures {
                stage: self.parts.outline.name.clone(),
                step: self.scheduler.version().0 + 1,
                failures: self.drawn.failed + 1,
                last: format!("group {} (task {}): {}", ticket.0, failure.task, failure.reason),
                checkpoint: self.last_good(),
            });
        }
        let record = Record::Failed { ticket, reason: failure.reason.clone() };
        Ok(Told::recorded(self.replaced_after_failure(ticket, failure), record))
    }

    /// A failure of the group whose task nobody has named.
    pub(super) fn failure(&self, ticket: Ticket, reason: String) -> GroupFailure {
        let task = match &self.parts.source {
            Source::Rollouts(source) => source.task_index(ticket),
            Source::Demonstrations(_) => ticket.0,
        };
        GroupFailure { task, reason }
    }

    /// Counts a failed group.
    pub(super) fn replaced_after_failure(&mut self, ticket: Ticket, failure: GroupFailure) -> SchedulerEvent {
        self.groups.under_way.remove(&ticket);
        self.events.warn(format!(
            "group {} (task {}) failed and is replaced: {}",
            ticket.0, failure.task, failure.reason
        ));
        self.group_ended(ticket.0, "failed", Some(failure.reason));
        self.drawn.failed += 1;
        SchedulerEvent::GroupFailed(ticket)
    }

    fn group_failed(&self, ticket: Ticket, failure: GroupFailure) -> RunError {
        RunError::Group {
            stage: self.parts.outline.name.clone(),
            step: self.scheduler.version().0 + 1,
            ticket: ticket.0,
            task: failure.task,
            reason: failure.reason,
            checkpoint: self.last_good(),
        }
    }

    /// Forgets a group, and cancels it if it is under way.
    pub(super) fn let_go(&mut self, ticket: Ticket, end: &str) {
        self.groups.ready.remove(&ticket);
        self.groups.left.remove(&ticket);
        if let Some(UnderWay { task: Some((_, handle)), .. }) = self.groups.under_way.remove(&ticket) {
            handle.abort();
        }
        // Those were told of, with their reasons.
        if end != "filtered" && end != "failed" {
            self.group_ended(ticket.0, end, None);
        }
    }

    /// The run stops: what is under way is cut off, and what there is of it kept for whoever resumes.
    pub(super) async fn keep_unfinished(&mut self) -> Result<(), RunError> {
        let Source::Rollouts(source) = &self.parts.source else { return Ok(()) };
        source.attempts.stopping.store(true, Ordering::Relaxed);
        if let Some(engine) = &self.parts.engine {
            engine.abort(Abort::All).await.map_err(|e| RunError::Setup(e.to_string()))?;
        }
        self.watch.heard();
        while self.groups.at_work() > 0 {
            self.stop_at_once()?;
            match tokio::time::timeout(TICK, self.groups.next()).await {
                Ok(event) => self.last_words(event)?,
                Err(_) => {
                    self.look_for_stall(|_| "the driver waits for the groups under way to stop".into())?;
                }
            }
        }
        Ok(())
    }

    /// Takes in what a group says that is to stop. Whether one is complete or has failed, whoever resumes finds again.
    fn last_words(&mut self, event: GroupEvent) -> Result<(), RunError> {
        self.watch.heard();
        let (from, what) = match event {
            GroupEvent::News(News { from, what }) => (from, Some(what)),
            GroupEvent::Ended(Ok(_)) => return Ok(()),
            GroupEvent::Ended(Err(error)) => match self.groups.names.remove(&error.id()) {
                Some(from) => (from, None),
                None => return Ok(()),
            },
        };
        if !self.groups.is_current(from) {
            return Ok(());
        }
        if let Some(What::Of(news)) = what {
            return self.group_news(from.ticket, news);
        }
        if let Some(group) = self.groups.under_way.get_mut(&from.ticket) {
            group.task = None;
        }
        Ok(())
    }
}
