//! The loop: takes what happens next, tells the scheduler, and does what it says.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rloom_core::{PolicyVersion, Ticket};

use super::SimError;
use super::account::{Batch, Lane, Totals, add};
use super::agenda::{Agenda, Happening, Next};
use super::fleet::Fleet;
use super::luck::Luck;
use super::population::{Population, Whereabouts};
use super::report::Report;
use super::scenario::Scenario;
use rloom_sched::{End, Priority, Scheduler, SchedulerCommand, SchedulerEvent};

/// A place in the queue: key (who goes first), when it came, sample, stamp.
type Place = Reverse<(u64, u64, u32, u32)>;

#[derive(Debug)]
pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    luck: Luck,
    scheduler: Scheduler,
    now: f64,
    agenda: Agenda,
    fleet: Fleet,
    people: Population,
    queue: BinaryHeap<Place>,
    queued: u64,
    waiting: u64,
    away: u64,
    ready: u64,
    totals: Totals,
    lane: Lane,
    /// The batch that is trained.
    under_way: Batch,
    /// The newest version that is published.
    version: u64,
    /// What the scheduler has to be told, in order.
    news: VecDeque<SchedulerEvent>,
    ended: Vec<u32>,
    back: Vec<(u32, f64)>,
    finished: bool,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Result<Self, SimError> {
        scenario.check()?;
        Ok(Self {
            luck: Luck { seed: scenario.seed },
            scheduler: Scheduler::new(scenario.scheduler)?,
            now: 0.0,
            agenda: Agenda::new(scenario.hardware.rollout.replicas),
            fleet: Fleet::new(&scenario.hardware.rollout),
            people: Population::new(scenario.workload.group_size),
            queue: BinaryHeap::new(),
            queued: 0,
            waiting: 0,
            away: 0,
            ready: 0,
            totals: Totals::default(),
            lane: Lane::Wait,
            under_way: Batch::default(),
            version: 0,
            news: VecDeque::from([SchedulerEvent::Begin]),
            ended: Vec::new(),
            back: Vec::new(),
            finished: false,
            scenario,
        })
    }

    /// Runs to the end of the stage.
    pub(crate) fn run(mut self) -> Result<Report, SimError> {
        let settings = self.scenario.scheduler;
        let (first, last) = window(settings.batches, settings.max_staleness);
        let mut opened = if first == 0 { Some(self.totals.clone()) } else { None };
        let mut closed = None;
        self.expect_failures();
        self.settle()?;
        while !self.finished {
            let Some((time, next)) = self.agenda.pop() else {
                return Err(SimError::Stuck { seconds: self.now, version: self.version });
            };
            self.pass(time);
            self.happen(next);
            self.settle()?;
            if opened.is_none() && self.version >= first {
                opened = Some(self.totals.clone());
            }
            if closed.is_none() && self.version >= last && last < settings.batches {
                closed = Some(self.totals.clone());
            }
            if self.totals.events > self.scenario.most_events {
                return Err(SimError::Endless { events: self.totals.events, version: self.version });
            }
        }
        let window = closed.as_ref().unwrap_or(&self.totals).since(&opened.unwrap_or_default());
        Ok(Report::new(self.scenario, &self.totals, &window))
    }

    fn pass(&mut self, time: f64) {
        let t = &mut self.totals;
        t.waiting.set(self.waiting as f64);
        t.away.set(self.away as f64);
        t.ready.set(self.ready as f64);
        t.pass(time - self.now, &self.fleet.doing, self.lane);
        t.prefill = self.fleet.prefill_seconds;
        t.events += 1;
        self.now = time;
    }

    /// Tells the scheduler the news until there is none, then fills the replicas.
    fn settle(&mut self) -> Result<(), SimError> {
        let mut commands = Vec::new();
        while let Some(event) = self.news.pop_front() {
            if !self.still_true(event) {
                continue;
            }
            self.totals.events += 1;
            self.scheduler.handle_into(event, &mut commands)?;
            for command in commands.drain(..) {
                self.obey(command)?;
            }
        }
        self.fill();
        self.fleet.settle(&mut self.agenda, &self.people.samples);
        Ok(())
    }

    /// Whether news of a group are of one that is alive and has made them: what was told before them in the same instant
    /// may have ended it, or put it off.
    fn still_true(&self, event: SchedulerEvent) -> bool {
        match event {
            SchedulerEvent::GroupReady { ticket, .. }
            | SchedulerEvent::GroupFiltered(ticket)
            | SchedulerEvent::GroupFailed(ticket) => {
                self.people.slot(ticket).is_some_and(|slot| self.people.groups[slot as usize].told)
            }
            _ => true,
        }
    }

    fn after(&mut self, seconds: f64, what: Happening) {
        self.agenda.push(self.now + seconds, what);
    }

    fn happen(&mut self, next: Next) {
        let on_update = self.scenario.on_update;
        match next {
            Next::Replica(replica) => self.sequences_ended(replica),
            Next::Other(Happening::Answered { sample, stamp }) => {
                if self.people.samples[sample as usize].stamp == stamp {
                    self.away -= 1;
                    self.begin_turn(sample);
                }
            }
            Next::Other(Happening::Scored { sample, stamp }) => {
                if self.people.samples[sample as usize].stamp == stamp {
                    self.away -= 1;
                    self.scored(sample);
                }
            }
            Next::Other(Happening::Trained) => {
                self.lane = Lane::Publish;
                self.after(self.scenario.hardware.train.publish_seconds, Happening::Published);
            }
            Next::Other(Happening::Published) => self.publish(),
            Next::Other(Happening::Evaluated) => {
                self.lane = Lane::Wait;
                self.news.push_back(SchedulerEvent::Evaluated);
            }
            Next::Other(Happening::Checkpointed) => {
                self.lane = Lane::Wait;
                self.news.push_back(SchedulerEvent::Checkpointed);
            }
            Next::Other(Happening::Loaded { replica, stamp }) => {
                self.fleet.loaded(replica, stamp, on_update, self.now);
            }
            Next::Other(Happening::Failed { replica, count }) => {
                self.totals.replica_failures += 1;
                self.fleet.fail(replica, self.now, &mut self.people.samples, &mut self.back);
                self.requeue(true);
                self.after(
                    self.scenario.failures.restart_seconds,
                    Happening::Restarted { replica, count: count + 1 },
                );
            }
            Next::Other(Happening::Restarted { replica, count }) => {
                self.fleet.restart(replica, self.version, self.now);
                let mean = self.scenario.failures.replica_seconds;
                let seconds = self.luck.until_failure(replica, count, mean);
                self.after(seconds, Happening::Failed { replica, count });
            }
        }
    }

    fn expect_failures(&mut self) {
        let mean = self.scenario.failures.replica_seconds;
        if mean > 0.0 {
            for replica in 0..self.scenario.hardware.rollout.replicas {
                let seconds = self.luck.until_failure(replica, 0, mean);
                self.after(seconds, Happening::Failed { replica, count: 0 });
            }
        }
    }

    fn obey(&mut self, command: SchedulerCommand) -> Result<(), SimError> {
        let train = &self.scenario.hardware.train;
        match command {
            SchedulerCommand::StartGroup(ticket) => self.start_group(ticket)?,
            SchedulerCommand::Defer(ticket) => {
                self.totals.put_off += 1;
                self.cancel_group(ticket)?;
            }
            SchedulerCommand::TrainBatch { batch, tickets } => self.train(batch, &tickets)?,
            SchedulerCommand::Drop(ticket, end) => {
                let ends = &mut self.totals.ends;
                *match end {
                    End::Trained => &mut ends.trained,
                    End::Filtered => &mut ends.filtered,
                    End::Stale => &mut ends.stale,
                    End::Failed => &mut ends.failed,
                    End::Surplus => &mut ends.surplus,
                } += 1;
                // A group that was put off has nothing to cancel.
                if self.people.slot(ticket).is_some() {
                    self.cancel_group(ticket)?;
                }
            }
            SchedulerCommand::Evaluate(_) => {
                self.lane = Lane::Evaluate;
                self.after(train.evaluate_seconds, Happening::Evaluated);
            }
            SchedulerCommand::Checkpoint(_) => {
                self.lane = Lane::Checkpoint;
                self.after(train.checkpoint_seconds, Happening::Checkpointed);
            }
            SchedulerCommand::Finish => self.finished = true,
        }
        Ok(())
    }

    fn start_group(&mut self, ticket: Ticket) -> Result<(), SimError> {
        let work = &self.scenario.workload;
        let luck = self.luck.group(ticket, work, &self.scenario.failures);
        let slot = self.people.enter(ticket).ok_or(SimError::Twice(ticket))?;
        self.totals.started = self.totals.started.max(ticket.0 + 1);
        let group = &mut self.people.groups[slot as usize];
        group.luck = luck.length;
        group.prompt = luck.prompt;
        group.fails = luck.fails;
        group.filtered = luck.filtered;
        for (i, id) in self.people.samples_of(slot).enumerate() {
            let cached = if i == 0 { 0.0 } else { work.prefix_cache };
            let sample = &mut self.people.samples[id as usize];
            sample.turns = self.luck.turns(ticket, i as u32, work);
            sample.context = luck.prompt;
            sample.unread = luck.prompt * (1.0 - cached);
            self.begin_turn(id);
        }
        Ok(())
    }

    /// Queues a sample for its next turn.
    fn begin_turn(&mut self, id: u32) {
        let group = &self.people.groups[self.people.group_of(id) as usize];
        let (ticket, luck) = (group.ticket, group.luck);
        let place = id % self.people.group_size;
        let sample = &mut self.people.samples[id as usize];
        sample.left = self.luck.tokens(ticket, place, sample.turn, luck, &self.scenario.workload);
        self.enqueue(id);
    }

    fn enqueue(&mut self, id: u32) {
        let ticket = self.people.groups[self.people.group_of(id) as usize].ticket.0;
        let sample = &mut self.people.samples[id as usize];
        sample.at = Whereabouts::Waiting;
        sample.stamp += 1;
        sample.queued_at = self.now;
        let key = match self.scenario.priority {
            Priority::Oldest => ticket,
            Priority::Arrival => 0,
        };
        self.queue.push(Reverse((key, self.queued, id, sample.stamp)));
        self.queued += 1;
        self.waiting += 1;
    }

    /// Gives free places to those who wait.
    fn fill(&mut self) {
        while self.waiting > 0 {
            let Some(replica) = self.fleet.least_loaded() else { break };
            let Some(Reverse((_, _, id, stamp))) = self.queue.pop() else { break };
            let sample = &mut self.people.samples[id as usize];
            if sample.stamp != stamp {
                continue;
            }
            self.waiting -= 1;
            self.totals.admitted += 1;
            self.totals.events += 1;
            self.totals.wait_seconds += self.now - sample.queued_at;
            self.totals.running.now += 1.0;
            self.fleet.start(replica, id, sample, self.now);
        }
    }

    fn sequences_ended(&mut self, replica: u32) {
        let mut ended = std::mem::take(&mut self.ended);
        self.fleet.ended(replica, self.now, &mut self.people.samples, &mut ended);
        self.totals.events += (ended.len() as u64).saturating_sub(1);
        for &id in &ended {
            let left = self.people.samples[id as usize].left;
            self.has_generated(replica, id, left);
        }
        for &id in &ended {
            // A group that failed with an earlier one of these has taken the others with it.
            if self.people.samples[id as usize].at == Whereabouts::Ended {
                self.turn_ended(id);
            }
        }
        self.ended = ended;
        self.fleet.drained(replica, self.scenario.on_update, self.now, &mut self.agenda);
    }

    /// Books tokens that a replica has generated, and adds them to the sample's context.
    fn has_generated(&mut self, replica: u32, id: u32, tokens: f64) {
        self.totals.running.now -= 1.0;
        self.totals.generated += tokens;
        let sample = &mut self.people.samples[id as usize];
        let group = &mut self.people.groups[(id / self.people.group_size) as usize];
        self.fleet.replicas[replica as usize].by_version(
            sample.start,
            sample.start + tokens,
            |version, n| group.add(version, n),
        );
        sample.context += tokens;
        sample.left -= tokens;
    }

    fn turn_ended(&mut self, id: u32) {
        let work = &self.scenario.workload;
        let ticket = self.people.groups[self.people.group_of(id) as usize].ticket;
        let place = id % self.people.group_size;
        let sample = &mut self.people.samples[id as usize];
        sample.at = Whereabouts::Away;
        sample.stamp += 1;
        let stamp = sample.stamp;
        self.away += 1;
        if sample.turn + 1 < sample.turns {
            let (tokens, seconds) = self.luck.answer(ticket, place, sample.turn, work);
            sample.turn += 1;
            sample.unread = tokens + sample.context * (1.0 - work.prefix_cache);
            sample.context += tokens;
            self.after(seconds, Happening::Answered { sample: id, stamp });
        } else {
            let seconds = self.luck.reward_seconds(ticket, place, work);
            if seconds > 0.0 {
                self.after(seconds, Happening::Scored { sample: id, stamp });
            } else {
                self.away -= 1;
                self.scored(id);
            }
        }
    }

    fn scored(&mut self, id: u32) {
        let context = {
            let sample = &mut self.people.samples[id as usize];
            sample.at = Whereabouts::Done;
            sample.stamp += 1;
            sample.context
        };
        let slot = self.people.group_of(id);
        let group = &mut self.people.groups[slot as usize];
        group.tokens += context;
        group.unfinished -= 1;
        group.told = group.fails || group.unfinished == 0;
        let ticket = group.ticket;
        if group.fails {
            // The scheduler's answer, a `Drop`, clears it away.
            self.news.push_back(SchedulerEvent::GroupFailed(ticket));
            self.withdraw(slot);
        } else if group.unfinished == 0 && group.filtered {
            self.news.push_back(SchedulerEvent::GroupFiltered(ticket));
        } else if group.unfinished == 0 {
            group.ready = true;
            self.ready += 1;
            let oldest = group.by_version.iter().map(|(v, _)| *v).min().unwrap_or(self.version);
            self.news.push_back(SchedulerEvent::GroupReady { ticket, oldest: PolicyVersion(oldest) });
        }
    }

    /// Takes a group's samples from wherever they are.
    fn withdraw(&mut self, slot: u32) {
        for id in self.people.samples_of(slot) {
            match self.people.samples[id as usize].at {
                Whereabouts::Waiting => self.waiting -= 1,
                Whereabouts::Away => self.away -= 1,
                Whereabouts::On(replica) => {
                    let sample = &mut self.people.samples[id as usize];
                    let tokens = self.fleet.cancel(replica, sample, self.now);
                    self.has_generated(replica, id, tokens);
                    self.fleet.drained(replica, self.scenario.on_update, self.now, &mut self.agenda);
                }
                Whereabouts::Nowhere | Whereabouts::Ended | Whereabouts::Done => {}
            }
            let sample = &mut self.people.samples[id as usize];
            sample.at = Whereabouts::Nowhere;
            sample.stamp += 1;
        }
    }

    /// Forgets a group that ended untrained, or that is put off.
    fn cancel_group(&mut self, ticket: Ticket) -> Result<(), SimError> {
        let slot = self.people.slot(ticket).ok_or(SimError::Unknown(ticket))?;
        self.withdraw(slot);
        let group = &self.people.groups[slot as usize];
        self.totals.wasted += group.generated();
        self.ready -= u64::from(group.ready);
        self.people.leave(ticket);
        Ok(())
    }

    /// Puts samples that lost their replica back into the queue: with what they have, or, `lost`, without it.
    fn requeue(&mut self, lost: bool) {
        let mut back = std::mem::take(&mut self.back);
        for &(id, tokens) in &back {
            let Whereabouts::On(replica) = self.people.samples[id as usize].at else { continue };
            if lost {
                self.totals.running.now -= 1.0;
                self.totals.generated += tokens;
                self.totals.wasted += tokens;
            } else {
                self.has_generated(replica, id, tokens);
            }
            let sample = &mut self.people.samples[id as usize];
            sample.unread = sample.context;
            self.enqueue(id);
        }
        back.clear();
        self.back = back;
    }

    fn train(&mut self, batch: u64, tickets: &[Ticket]) -> Result<(), SimError> {
        let mut under_way = Batch::default();
        for &ticket in tickets {
            let slot = self.people.slot(ticket).ok_or(SimError::Unknown(ticket))?;
            let group = &self.people.groups[slot as usize];
            under_way.tokens += group.tokens;
            under_way.learned += group.generated();
            under_way.groups += 1;
            let oldest = group.by_version.iter().map(|(v, _)| *v).min().unwrap_or(batch);
            add(&mut under_way.group_ages, batch.saturating_sub(oldest), 1.0);
            for &(version, n) in &group.by_version {
                add(&mut under_way.token_ages, batch.saturating_sub(version), n);
            }
            self.ready -= 1;
            self.people.leave(ticket);
        }
        let tokens = under_way.tokens;
        self.under_way = under_way;
        let hardware = &self.scenario.hardware;
        self.lane = Lane::Train;
        if hardware.shared {
            self.fleet.pause(true, self.now);
        }
        let seconds = hardware.train.fixed_seconds + tokens / hardware.train.tokens_per_second;
        self.after(seconds, Happening::Trained);
        Ok(())
    }

    fn publish(&mut self) {
        // What is trained is booked when it is, so that the books of a version are those of its batches.
        self.totals.book(&std::mem::take(&mut self.under_way));
        self.version += 1;
        self.totals.version = self.version;
        self.lane = Lane::Wait;
        if self.scenario.hardware.shared {
            self.fleet.pause(false, self.now);
        }
        for replica in 0..self.scenario.hardware.rollout.replicas {
            self.fleet.publish(
                replica,
                self.version,
                self.scenario.on_update,
                self.now,
                &mut self.people.samples,
                &mut self.agenda,
                &mut self.back,
            );
        }
        self.requeue(false);
        self.news.push_back(SchedulerEvent::BatchTrained);
    }
}

/// From which version to which the pipeline is neither filled nor emptied. A stage too short for that is looked at as a
/// whole.
fn window(batches: u64, max_staleness: u64) -> (u64, u64) {
    let first = (4 * (max_staleness + 1)).min(batches / 4);
    let last = batches.saturating_sub(max_staleness + 1);
    if last > first { (first, last) } else { (0, batches) }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
