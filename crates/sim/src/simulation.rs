//! The main loop: processes the next event, reports to the scheduler, and executes its commands.

use std::collections::{BTreeMap, VecDeque};

use rloom_core::{PolicyVersion, Ticket};

use super::active_workload::{ActiveWorkload, SampleState};
use super::event_queue::{EventQueue, NextEvent, SimEvent};
use super::fleet::Fleet;
use super::random_draws::RandomDraws;
use super::replica_queue::ReplicaQueue;
use super::report::Report;
use super::scenario::Scenario;
use super::totals::{BatchTotals, Totals, TrainerActivity, add};
use super::trainer::Trainer;
use super::{DecodeRate, SimError};
use rloom_sched::{End, ReusedGroup, Scheduler, SchedulerCommand, SchedulerEvent};

/// State of a running simulation.
#[derive(Debug)]
pub(crate) struct Simulation<'a> {
    scenario: &'a Scenario,
    draws: RandomDraws,
    scheduler: Scheduler,
    now: f64,
    events: EventQueue,
    fleet: Fleet,
    active: ActiveWorkload,
    queue: ReplicaQueue,
    totals: Totals,
    trainer: Trainer,
    /// Events not yet sent to the scheduler, in order.
    scheduler_events: VecDeque<SchedulerEvent>,
    buffers: Buffers,
    /// Tokens of the trained groups that later batches may reuse.
    reusable: BTreeMap<Ticket, f64>,
}

/// Buffers that keep their memory between events.
#[derive(Debug, Default)]
struct Buffers {
    /// Samples whose turn ended.
    ended: Vec<u32>,
    /// Samples that lost their replica, with the tokens generated there.
    returned: Vec<(u32, f64)>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Result<Self, SimError> {
        scenario.check()?;
        Ok(Self {
            draws: RandomDraws { seed: scenario.seed },
            scheduler: Scheduler::new(scenario.scheduler)?,
            now: 0.0,
            events: EventQueue::new(scenario.hardware.rollout.replicas),
            fleet: Fleet::new(&scenario.hardware.rollout),
            active: ActiveWorkload::new(scenario.workload.group_size),
            queue: ReplicaQueue::new(scenario.priority),
            totals: Totals::default(),
            trainer: Trainer::new(),
            scheduler_events: VecDeque::from([SchedulerEvent::Begin]),
            buffers: Buffers::default(),
            reusable: BTreeMap::new(),
            scenario,
        })
    }

    /// Runs to the end of the stage.
    pub(crate) fn run(mut self) -> Result<Report, SimError> {
        let settings = self.scenario.scheduler;
        let (first, last) = steady_window(settings.batches, settings.max_staleness);
        let mut opened = if first == 0 { Some(self.totals.clone()) } else { None };
        let mut closed = None;
        self.schedule_failures();
        let mut is_finished = self.run_scheduler()?;
        while !is_finished {
            let Some((time, next)) = self.events.pop() else {
                return Err(SimError::Stalled { seconds: self.now, version: self.trainer.version });
            };
            self.advance_to(time);
            self.handle_event(next);
            is_finished = self.run_scheduler()?;
            if opened.is_none() && self.trainer.version >= first {
                opened = Some(self.totals.clone());
            }
            if closed.is_none() && self.trainer.version >= last && last < settings.batches {
                closed = Some(self.totals.clone());
            }
            if self.totals.events > self.scenario.max_events {
                return Err(SimError::TooManyEvents {
                    events: self.totals.events,
                    version: self.trainer.version,
                });
            }
        }
        let window = closed.as_ref().unwrap_or(&self.totals).since(&opened.unwrap_or_default());
        Ok(Report::new(self.scenario, &self.totals, &window))
    }

    fn advance_to(&mut self, time: f64) {
        let t = &mut self.totals;
        t.waiting.set(self.queue.len() as f64);
        t.external.set(self.active.external as f64);
        t.ready.set(self.active.ready as f64);
        t.advance(time - self.now, &self.fleet.activities, self.trainer.activity);
        t.prefill = self.fleet.prefill_seconds;
        t.events += 1;
        self.now = time;
    }

    /// Sends the pending events to the scheduler until none are left, then fills the replicas. Returns true if the
    /// scheduler has finished the stage.
    fn run_scheduler(&mut self) -> Result<bool, SimError> {
        let mut commands = Vec::new();
        let mut is_finished = false;
        while let Some(event) = self.scheduler_events.pop_front() {
            if !self.is_current(event) {
                continue;
            }
            self.totals.events += 1;
            self.scheduler.handle_into(event, &mut commands)?;
            for command in commands.drain(..) {
                is_finished |= matches!(command, SchedulerCommand::Finish);
                self.handle_command(command)?;
            }
        }
        self.dispatch_waiting();
        self.fleet.schedule_ends(&mut self.events, &self.active.samples);
        Ok(is_finished)
    }

    /// False for an event of a group that has been dropped or deferred because of another event at the same instant.
    fn is_current(&self, event: SchedulerEvent) -> bool {
        match event {
            SchedulerEvent::GroupReady { ticket, .. }
            | SchedulerEvent::GroupFiltered(ticket)
            | SchedulerEvent::GroupFailed(ticket) => {
                self.active.slot(ticket).is_some_and(|slot| self.active.groups[slot as usize].reported)
            }
            _ => true,
        }
    }

    fn schedule(&mut self, seconds: f64, event: SimEvent) {
        self.events.push(self.now + seconds, event);
    }

    fn handle_event(&mut self, next: NextEvent) {
        let on_update = self.scenario.on_update;
        match next {
            NextEvent::Replica(replica) => self.sequences_ended(replica),
            NextEvent::Other(SimEvent::Observed { sample, stamp }) => {
                if self.active.samples[sample as usize].stamp == stamp {
                    self.active.external -= 1;
                    self.begin_turn(sample);
                }
            }
            NextEvent::Other(SimEvent::Scored { sample, stamp }) => {
                if self.active.samples[sample as usize].stamp == stamp {
                    self.active.external -= 1;
                    self.scored(sample);
                }
            }
            NextEvent::Other(SimEvent::Trained) => {
                self.trainer.activity = TrainerActivity::Publish;
                self.schedule(self.scenario.hardware.train.publish_seconds, SimEvent::Published);
            }
            NextEvent::Other(SimEvent::Published) => self.publish(),
            NextEvent::Other(SimEvent::Evaluated) => {
                self.trainer.activity = TrainerActivity::Idle;
                self.scheduler_events.push_back(SchedulerEvent::Evaluated);
            }
            NextEvent::Other(SimEvent::Checkpointed) => {
                self.trainer.activity = TrainerActivity::Idle;
                self.scheduler_events.push_back(SchedulerEvent::Checkpointed);
            }
            NextEvent::Other(SimEvent::Loaded { replica, stamp }) => {
                self.fleet.loaded(replica, stamp, on_update, self.now);
            }
            NextEvent::Other(SimEvent::Failed { replica, count }) => {
                self.totals.replica_failures += 1;
                self.fleet.fail(replica, self.now, &mut self.active.samples, &mut self.buffers.returned);
                self.requeue(true);
                self.schedule(
                    self.scenario.failures.restart_seconds,
                    SimEvent::Restarted { replica, count: count + 1 },
                );
            }
            NextEvent::Other(SimEvent::Restarted { replica, count }) => {
                self.fleet.restart(replica, self.trainer.version, self.now);
                let mean = self.scenario.failures.replica_seconds;
                let seconds = self.draws.until_failure(replica, count, mean);
                self.schedule(seconds, SimEvent::Failed { replica, count });
            }
        }
    }

    fn schedule_failures(&mut self) {
        let mean = self.scenario.failures.replica_seconds;
        if mean > 0.0 {
            for replica in 0..self.scenario.hardware.rollout.replicas {
                let seconds = self.draws.until_failure(replica, 0, mean);
                self.schedule(seconds, SimEvent::Failed { replica, count: 0 });
            }
        }
    }

    fn handle_command(&mut self, command: SchedulerCommand) -> Result<(), SimError> {
        let train = &self.scenario.hardware.train;
        match command {
            SchedulerCommand::StartGroup(ticket) => self.start_group(ticket)?,
            SchedulerCommand::Defer(ticket) => {
                self.totals.deferred += 1;
                self.cancel_group(ticket)?;
            }
            SchedulerCommand::TrainBatch { batch, tickets, reused } => {
                self.train(batch, &tickets, &reused)?;
            }
            SchedulerCommand::Drop(ticket, end) => {
                let ends = &mut self.totals.ends;
                *match end {
                    End::Trained => &mut ends.trained,
                    End::Filtered => &mut ends.filtered,
                    End::Stale => &mut ends.stale,
                    End::Failed => &mut ends.failed,
                    End::Surplus => &mut ends.surplus,
                } += 1;
                // A deferred group is not active.
                if self.active.slot(ticket).is_some() {
                    self.cancel_group(ticket)?;
                }
            }
            SchedulerCommand::Evaluate(_) => {
                self.trainer.activity = TrainerActivity::Evaluate;
                self.schedule(train.evaluate_seconds, SimEvent::Evaluated);
            }
            SchedulerCommand::Checkpoint(_) => {
                self.trainer.activity = TrainerActivity::Checkpoint;
                self.schedule(train.checkpoint_seconds, SimEvent::Checkpointed);
            }
            SchedulerCommand::Finish => {}
        }
        Ok(())
    }

    fn start_group(&mut self, ticket: Ticket) -> Result<(), SimError> {
        let work = &self.scenario.workload;
        let draws = self.draws.group(ticket, work, &self.scenario.failures);
        let slot = self.active.insert(ticket).ok_or(SimError::AlreadyActive(ticket))?;
        self.totals.started = self.totals.started.max(ticket.0 + 1);
        let group = &mut self.active.groups[slot as usize];
        group.shared_length = draws.shared_length;
        group.prompt = draws.prompt;
        group.fails = draws.fails;
        group.filtered = draws.filtered;
        for (i, id) in self.active.samples_of(slot).enumerate() {
            let cached = if i == 0 { 0.0 } else { work.prefix_cache };
            let sample = &mut self.active.samples[id as usize];
            sample.turns = self.draws.turns(ticket, i as u32, work);
            sample.context = draws.prompt;
            sample.unread = draws.prompt * (1.0 - cached);
            self.begin_turn(id);
        }
        Ok(())
    }

    /// Queues a sample for its next turn.
    fn begin_turn(&mut self, id: u32) {
        let group = &self.active.groups[self.active.group_of(id) as usize];
        let (ticket, shared) = (group.ticket, group.shared_length);
        let index = id % self.active.group_size;
        let sample = &mut self.active.samples[id as usize];
        sample.left = self.draws.tokens(ticket, index, sample.turn, shared, &self.scenario.workload);
        if let DecodeRate::Service(times) = &self.scenario.hardware.rollout.decode {
            let uniform = self.draws.service(ticket, index, sample.turn);
            sample.pace = times.draw(sample.left, uniform) / sample.left;
        }
        self.enqueue(id);
    }

    fn enqueue(&mut self, id: u32) {
        let ticket = self.active.groups[self.active.group_of(id) as usize].ticket;
        let sample = &mut self.active.samples[id as usize];
        sample.state = SampleState::Waiting;
        sample.stamp += 1;
        sample.queued_at = self.now;
        self.queue.push(ticket, id, sample.stamp);
    }

    /// Starts waiting samples on replicas with free capacity.
    fn dispatch_waiting(&mut self) {
        while !self.queue.is_empty() {
            let Some(replica) = self.fleet.least_loaded() else { break };
            let Some(id) = self.queue.pop(&self.active.samples) else { break };
            let sample = &mut self.active.samples[id as usize];
            self.totals.admitted += 1;
            self.totals.events += 1;
            self.totals.wait_seconds += self.now - sample.queued_at;
            self.totals.running.current += 1.0;
            self.fleet.start(replica, id, sample, self.now);
        }
    }

    fn sequences_ended(&mut self, replica: u32) {
        let mut ended = std::mem::take(&mut self.buffers.ended);
        self.fleet.ended(replica, self.now, &mut self.active.samples, &mut ended);
        self.totals.events += (ended.len() as u64).saturating_sub(1);
        for &id in &ended {
            let left = self.active.samples[id as usize].left;
            self.record_generated(replica, id, left);
        }
        for &id in &ended {
            // A group that failed with an earlier sample has released this one already.
            if self.active.samples[id as usize].state == SampleState::TurnEnded {
                self.turn_ended(id);
            }
        }
        self.buffers.ended = ended;
        self.fleet.drained(replica, self.scenario.on_update, self.now, &mut self.events);
    }

    /// Records tokens generated on a replica and adds them to the sample's context.
    fn record_generated(&mut self, replica: u32, id: u32, tokens: f64) {
        self.totals.running.current -= 1.0;
        self.totals.generated += tokens;
        let sample = &mut self.active.samples[id as usize];
        let group = &mut self.active.groups[(id / self.active.group_size) as usize];
        let pace = sample.pace;
        self.fleet.replicas[replica as usize].history.tokens_by_version(
            sample.start,
            sample.start + tokens * pace,
            |version, work| group.add(version, work / pace),
        );
        sample.context += tokens;
        sample.left -= tokens;
    }

    fn turn_ended(&mut self, id: u32) {
        let work = &self.scenario.workload;
        let ticket = self.active.groups[self.active.group_of(id) as usize].ticket;
        let index = id % self.active.group_size;
        let sample = &mut self.active.samples[id as usize];
        sample.state = SampleState::External;
        sample.stamp += 1;
        let stamp = sample.stamp;
        self.active.external += 1;
        if sample.turn + 1 < sample.turns {
            let (tokens, seconds) = self.draws.observation(ticket, index, sample.turn, work);
            sample.turn += 1;
            sample.unread = tokens + sample.context * (1.0 - work.prefix_cache);
            sample.context += tokens;
            self.schedule(seconds, SimEvent::Observed { sample: id, stamp });
        } else {
            let seconds = self.draws.reward_seconds(ticket, index, work);
            if seconds > 0.0 {
                self.schedule(seconds, SimEvent::Scored { sample: id, stamp });
            } else {
                self.active.external -= 1;
                self.scored(id);
            }
        }
    }

    fn scored(&mut self, id: u32) {
        let context = {
            let sample = &mut self.active.samples[id as usize];
            sample.state = SampleState::Done;
            sample.stamp += 1;
            sample.context
        };
        let slot = self.active.group_of(id);
        let group = &mut self.active.groups[slot as usize];
        group.tokens += context;
        group.unfinished -= 1;
        group.reported = group.fails || group.unfinished == 0;
        let ticket = group.ticket;
        if group.fails {
            // The scheduler responds with `Drop`, which removes the group.
            self.scheduler_events.push_back(SchedulerEvent::GroupFailed(ticket));
            self.release_samples(slot);
        } else if group.unfinished == 0 && group.filtered {
            self.scheduler_events.push_back(SchedulerEvent::GroupFiltered(ticket));
        } else if group.unfinished == 0 {
            let oldest = group.by_version.iter().map(|(v, _)| *v).min().unwrap_or(self.trainer.version);
            self.active.mark_ready(slot);
            self.scheduler_events
                .push_back(SchedulerEvent::GroupReady { ticket, oldest: PolicyVersion(oldest) });
        }
    }

    /// Removes the samples of a group from the queue, the replicas and external calls.
    fn release_samples(&mut self, slot: u32) {
        for id in self.active.samples_of(slot) {
            match self.active.samples[id as usize].state {
                SampleState::Waiting => self.queue.remove_one(),
                SampleState::External => self.active.external -= 1,
                SampleState::Decoding(replica) => {
                    let sample = &mut self.active.samples[id as usize];
                    let tokens = self.fleet.cancel(replica, sample, self.now);
                    self.record_generated(replica, id, tokens);
                    self.fleet.drained(replica, self.scenario.on_update, self.now, &mut self.events);
                }
                SampleState::Inactive | SampleState::TurnEnded | SampleState::Done => {}
            }
            let sample = &mut self.active.samples[id as usize];
            sample.state = SampleState::Inactive;
            sample.stamp += 1;
        }
    }

    /// Removes a group that ended without training or is deferred.
    fn cancel_group(&mut self, ticket: Ticket) -> Result<(), SimError> {
        let slot = self.active.slot(ticket).ok_or(SimError::NotActive(ticket))?;
        self.release_samples(slot);
        let group = &self.active.groups[slot as usize];
        self.totals.wasted += group.generated();
        self.active.remove(ticket);
        Ok(())
    }

    /// Queues samples that lost their replica again: with the tokens generated there, or without them if `lost`.
    fn requeue(&mut self, lost: bool) {
        let mut returned = std::mem::take(&mut self.buffers.returned);
        for &(id, tokens) in &returned {
            let SampleState::Decoding(replica) = self.active.samples[id as usize].state else { continue };
            if lost {
                self.totals.running.current -= 1.0;
                self.totals.generated += tokens;
                self.totals.wasted += tokens;
            } else {
                self.record_generated(replica, id, tokens);
            }
            let sample = &mut self.active.samples[id as usize];
            sample.unread = sample.context;
            self.enqueue(id);
        }
        returned.clear();
        self.buffers.returned = returned;
    }

    fn train(&mut self, batch: u64, tickets: &[Ticket], reused: &[ReusedGroup]) -> Result<(), SimError> {
        let mut batch_totals = BatchTotals::default();
        for &ticket in tickets {
            let slot = self.active.slot(ticket).ok_or(SimError::NotActive(ticket))?;
            let group = &self.active.groups[slot as usize];
            batch_totals.tokens += group.tokens;
            batch_totals.useful += group.generated();
            batch_totals.groups += 1;
            let oldest = group.by_version.iter().map(|(v, _)| *v).min().unwrap_or(batch);
            add(&mut batch_totals.group_ages, batch.saturating_sub(oldest), 1.0);
            for &(version, n) in &group.by_version {
                add(&mut batch_totals.token_ages, batch.saturating_sub(version), n);
            }
            if self.scheduler.is_reusable(ticket) {
                self.reusable.insert(ticket, group.tokens);
            }
            self.active.remove(ticket);
        }
        // Reused groups cost time and are not counted as trained again.
        let reused: f64 = reused.iter().filter_map(|reused| self.reusable.get(&reused.ticket)).sum();
        let tokens = batch_totals.tokens + reused;
        self.trainer.train(batch_totals);
        let hardware = &self.scenario.hardware;
        if hardware.shared {
            self.fleet.pause(true, self.now);
        }
        let seconds = hardware.train.fixed_seconds + tokens / hardware.train.tokens_per_second;
        self.schedule(seconds, SimEvent::Trained);
        Ok(())
    }

    fn publish(&mut self) {
        self.reusable.retain(|ticket, _| self.scheduler.is_reusable(*ticket));
        // Recorded on completion, so that the totals of a version are those of its batches.
        self.totals.record_batch(&self.trainer.published());
        self.totals.version = self.trainer.version;
        if self.scenario.hardware.shared {
            self.fleet.pause(false, self.now);
        }
        for replica in 0..self.scenario.hardware.rollout.replicas {
            self.fleet.publish(
                replica,
                self.trainer.version,
                self.scenario.on_update,
                self.now,
                &mut self.active.samples,
                &mut self.events,
                &mut self.buffers.returned,
            );
        }
        self.requeue(false);
        self.scheduler_events.push_back(SchedulerEvent::BatchTrained);
    }
}

/// First and last version between which the pipeline is neither filling nor draining; the whole stage if it is too short.
fn steady_window(batches: u64, max_staleness: u64) -> (u64, u64) {
    let first = (4 * (max_staleness + 1)).min(batches / 4);
    let last = batches.saturating_sub(max_staleness + 1);
    if last > first { (first, last) } else { (0, batches) }
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod tests;
