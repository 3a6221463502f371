//! A driver that executes the commands of the scheduler in an order drawn by the test and checks every command and every
//! state against the rules.

mod resume;

use std::collections::{BTreeMap, BTreeSet};

use rloom_core::{Apportionment, Draw, PolicyVersion, Ticket};
use rloom_sched::{
    Counts, CutOrder, End, GroupStatus, OpenGroup, ReusedGroup, Scheduler, SchedulerCommand, SchedulerEvent,
    SchedulerSettings, SchedulerState, Stragglers,
};

pub(crate) use resume::resumed;

/// Random choices of a test: the order of events and the outcome of groups.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// For each step: the event to pick, the outcome of a group, and its oldest version.
    pub(crate) steps: Vec<(u64, u8, u64)>,
    /// Range of steps in which every finished group is filtered.
    pub(crate) rejects: (usize, usize),
    /// Tickets divisible by this are slow: they finish only when nothing else can; 0 for none.
    pub(crate) slow_every: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct SimulatedDriver {
    pub(crate) settings: SchedulerSettings,
    pub(crate) scheduler: Scheduler,
    /// Domain of each slot of the stage; empty without quotas.
    slots: Vec<u32>,
    /// Draws of all tickets so far, with quotas.
    pub(crate) draws: BTreeMap<Ticket, Draw>,
    /// Running groups and the versions they started with.
    pub(crate) running: BTreeMap<Ticket, u64>,
    /// Ready groups, their oldest versions and their completion indices.
    ready: BTreeMap<Ticket, (u64, u64)>,
    deferred: BTreeSet<Ticket>,
    ever_deferred: BTreeSet<Ticket>,
    pub(crate) ends: BTreeMap<Ticket, End>,
    training: Option<Vec<Ticket>>,
    /// Reused groups of the batch in flight.
    reusing: Vec<ReusedGroup>,
    /// Reuses of each trained group.
    pub(crate) reuses: BTreeMap<Ticket, u64>,
    /// Oldest version of each group that was cut into a batch.
    oldest: BTreeMap<Ticket, u64>,
    pub(crate) pending: Option<SchedulerEvent>,
    completions: u64,
    pub(crate) batches: Vec<Vec<Ticket>>,
    pub(crate) evaluations: Vec<u64>,
    pub(crate) checkpoints: Vec<u64>,
    pub(crate) finished: bool,
    stopping: bool,
    /// Groups replaced since the last cut.
    replaced: usize,
    /// Number of deferred tickets when the last batch was cut.
    deferred_before: usize,
    /// Events sent and the commands returned.
    pub(crate) log: Vec<(SchedulerEvent, Vec<SchedulerCommand>)>,
    /// Checkpointed states with the length of the log at that time.
    pub(crate) saved: Vec<(usize, SchedulerState)>,
    step: usize,
}

impl SimulatedDriver {
    pub(crate) fn new(settings: SchedulerSettings) -> Self {
        Self::begun(settings, Scheduler::new(settings).unwrap(), Vec::new())
    }

    /// A driver of a stage with quotas.
    pub(crate) fn with_quotas(settings: SchedulerSettings, weights: &[f64]) -> Self {
        let scheduler = Scheduler::with_quotas(settings, weights, SchedulerState::default()).unwrap();
        let mut sequence = Apportionment::new(weights).unwrap();
        let slots = settings.batches * settings.groups_per_batch;
        Self::begun(settings, scheduler, (0..slots).map(|_| sequence.turn() as u32).collect())
    }

    fn begun(settings: SchedulerSettings, scheduler: Scheduler, slots: Vec<u32>) -> Self {
        let mut driver = Self {
            settings,
            scheduler,
            slots,
            draws: BTreeMap::new(),
            running: BTreeMap::new(),
            ready: BTreeMap::new(),
            deferred: BTreeSet::new(),
            ever_deferred: BTreeSet::new(),
            ends: BTreeMap::new(),
            training: None,
            reusing: Vec::new(),
            reuses: BTreeMap::new(),
            oldest: BTreeMap::new(),
            pending: None,
            completions: 0,
            batches: Vec::new(),
            evaluations: Vec::new(),
            checkpoints: Vec::new(),
            finished: false,
            stopping: false,
            replaced: 0,
            deferred_before: 0,
            log: Vec::new(),
            saved: Vec::new(),
            step: 0,
        };
        driver.send(SchedulerEvent::Begin);
        driver
    }

    fn version(&self) -> u64 {
        self.batches.len() as u64
    }

    /// Sends an event to the scheduler and executes its commands.
    pub(crate) fn send(&mut self, event: SchedulerEvent) {
        self.stopping |= event == SchedulerEvent::StopRequested;
        let commands = self.scheduler.handle(event).unwrap();
        for command in &commands {
            assert!(!self.finished, "{command:?} after the end");
            self.execute(command);
        }
        let saves = commands.iter().any(|c| matches!(c, SchedulerCommand::Checkpoint(_)));
        self.log.push((event, commands));
        if saves {
            self.saved.push((self.log.len(), self.scheduler.state()));
        }
        self.check();
    }

    fn execute(&mut self, command: &SchedulerCommand) {
        match command {
            SchedulerCommand::StartGroup(ticket) => self.start(*ticket),
            SchedulerCommand::Defer(ticket) => {
                assert_eq!(self.settings.stragglers, Stragglers::Defer);
                assert!(self.running.remove(ticket).is_some(), "only a running group is deferred");
                assert!(self.deferred.insert(*ticket));
                assert!(self.ever_deferred.insert(*ticket), "a group is deferred at most once");
            }
            SchedulerCommand::TrainBatch { batch, tickets, reused } => {
                self.check_reused(*batch, reused);
                self.train(*batch, tickets);
            }
            SchedulerCommand::Drop(ticket, end) => self.drop_group(*ticket, *end),
            SchedulerCommand::Evaluate(version) => {
                assert_eq!(version.0, self.version());
                self.request(SchedulerEvent::Evaluated);
                self.evaluations.push(version.0);
            }
            SchedulerCommand::Checkpoint(version) => {
                assert_eq!(version.0, self.version());
                self.request(SchedulerEvent::Checkpointed);
                self.checkpoints.push(version.0);
            }
            SchedulerCommand::Finish => {
                assert!(self.pending.is_none());
                assert!(self.stopping || (self.running.is_empty() && self.ready.is_empty()));
                self.finished = true;
            }
        }
    }

    fn request(&mut self, answer: SchedulerEvent) {
        assert!(self.pending.replace(answer).is_none(), "SCHED-6: one item of work at a time");
    }

    fn start(&mut self, ticket: Ticket) {
        assert!(!self.ends.contains_key(&ticket), "SCHED-5");
        let again = self.deferred.remove(&ticket);
        assert_eq!(
            again,
            self.ever_deferred.contains(&ticket),
            "a ticket starts once, and once more if deferred"
        );
        if !again && self.ever_put_off_runs() {
            assert!(self.deferred.is_empty() && self.replaced > 0, "a deferred round contains other groups");
        }
        if !self.slots.is_empty() {
            self.check_draw(ticket);
        }
        assert!(self.running.insert(ticket, self.version()).is_none());
        if self.settings.pin_version {
            let batch = ticket.0 / self.settings.groups_per_batch;
            let pinned = batch.saturating_sub(self.settings.max_staleness);
            assert_eq!(pinned, self.version(), "SCHED-8: {ticket:?}");
        }
    }

    /// Checks that a new ticket has the next task of its domain.
    fn check_draw(&mut self, ticket: Ticket) {
        let draw = self.scheduler.draw(ticket);
        let before = self.draws.values().filter(|other| other.domain == draw.domain).count();
        assert_eq!(draw.position, before as u64, "SCHED-9: tasks of a domain are drawn in order");
        assert!(self.draws.insert(ticket, draw).is_none());
    }

    pub(crate) fn domain(&self, ticket: Ticket) -> u32 {
        self.draws.get(&ticket).map_or(0, |draw| draw.domain)
    }

    /// Number of groups of each domain in a range of slots.
    fn quota(&self, slots: std::ops::Range<u64>) -> BTreeMap<u32, usize> {
        let mut quota = BTreeMap::new();
        for slot in slots {
            *quota.entry(self.slots.get(slot as usize).copied().unwrap_or(0)).or_default() += 1;
        }
        quota
    }

    /// The same batch, and next to it the same groups of each domain alone.
    fn by_domain(&self, tickets: &[Ticket]) -> Vec<(Vec<Ticket>, Vec<Ticket>, Vec<u64>)> {
        let domains: BTreeSet<u32> = self.slots.iter().copied().chain([0]).collect();
        let of = |domain: u32| {
            let own = |t: &&Ticket| self.domain(**t) == domain;
            let held = self.running.keys().chain(self.ready.keys());
            let indices = self.ready.iter().filter(|(t, _)| self.domain(**t) == domain).map(|(_, (_, i))| *i);
            (
                tickets.iter().filter(own).copied().collect(),
                held.filter(own).copied().collect(),
                indices.collect(),
            )
        };
        domains.into_iter().map(of).collect()
    }

    fn ever_put_off_runs(&self) -> bool {
        self.running.keys().chain(self.ready.keys()).any(|t| self.ever_deferred.contains(t))
    }

    /// Checks the reused groups of a batch: as many as possible of those that the rule allows.
    fn check_reused(&mut self, batch: u64, reused: &[ReusedGroup]) {
        self.reusing = reused.to_vec();
        let Some(rule) = self.settings.reuse else {
            assert_eq!(reused, []);
            return;
        };
        let uses = |ticket: &Ticket| self.reuses.get(ticket).copied().unwrap_or(0);
        let trained: BTreeSet<Ticket> = self.batches.iter().flatten().copied().collect();
        let allowed: BTreeSet<Ticket> = trained
            .into_iter()
            .filter(|t| uses(t) < rule.max_uses && batch - self.oldest[t] <= rule.max_age)
            .collect();
        assert_eq!(reused.len() as u64, rule.groups.min(allowed.len() as u64), "SCHED-10");
        assert!(reused.is_sorted_by(|a, b| a.ticket < b.ticket), "SCHED-10: a group is reused twice");
        for ReusedGroup { ticket, reuse } in reused {
            assert!(allowed.contains(ticket), "SCHED-10");
            assert_eq!(self.ends.get(ticket), Some(&End::Trained), "SCHED-10");
            assert_eq!(*reuse, uses(ticket) + 1, "SCHED-10");
        }
    }

    fn train(&mut self, batch: u64, tickets: &[Ticket]) {
        assert_eq!(batch, self.version());
        assert_eq!(tickets.len() as u64, self.settings.groups_per_batch);
        if !self.slots.is_empty() {
            let size = self.settings.groups_per_batch;
            let mut found = BTreeMap::new();
            for ticket in tickets {
                *found.entry(self.domain(*ticket)).or_default() += 1;
            }
            assert_eq!(found, self.quota(batch * size..(batch + 1) * size), "SCHED-9");
        }
        let mut indices = BTreeMap::new();
        for ticket in tickets {
            let (oldest, completion_index) =
                self.ready.remove(ticket).expect("only ready groups are trained");
            assert!(batch - oldest <= self.settings.max_staleness, "SCHED-2");
            self.oldest.insert(*ticket, oldest);
            indices.insert(*ticket, completion_index);
        }
        match self.settings.cut_order {
            CutOrder::Ticket => assert!(tickets.is_sorted(), "SCHED-4"),
            CutOrder::Completion => assert!(tickets.is_sorted_by_key(|t| indices[t]), "SCHED-4"),
        }
        if self.settings.stragglers == Stragglers::Wait {
            self.check_waited(batch, tickets, &indices);
        }
        for (batch, left, indices_left) in self.by_domain(tickets) {
            match self.settings.cut_order {
                CutOrder::Completion if self.settings.stragglers == Stragglers::Wait => {}
                CutOrder::Ticket => {
                    let next = left.iter().min();
                    assert!(next.is_none_or(|n| batch.iter().all(|t| t < n)), "SCHED-4");
                }
                CutOrder::Completion => {
                    let next = indices_left.iter().min();
                    assert!(next.is_none_or(|n| batch.iter().all(|t| indices[t] < *n)), "SCHED-4");
                }
            }
        }
        let were_deferred = tickets.iter().filter(|t| self.ever_deferred.contains(t)).count();
        if self.deferred_before < tickets.len() {
            assert_eq!(were_deferred, 0, "a deferred round is not due yet");
        } else {
            assert!(tickets.len() - were_deferred <= self.replaced, "a deferred round was due");
        }
        self.replaced = 0;
        self.deferred_before = self.deferred.len();
        self.training = Some(tickets.to_vec());
        self.request(SchedulerEvent::BatchTrained);
    }

    /// Held groups that can be trained in the batches up to `batch` only.
    fn due(&self, batch: u64) -> BTreeSet<Ticket> {
        let running = self.running.iter().map(|(ticket, oldest)| (*ticket, *oldest));
        let ready = self.ready.iter().map(|(ticket, (oldest, _))| (*ticket, *oldest));
        let is_due = |(_, oldest): &(Ticket, u64)| oldest + self.settings.max_staleness <= batch;
        running.chain(ready).filter(is_due).map(|(ticket, _)| ticket).collect()
    }

    /// True if `batch` leaves no more groups than fit into the batches that may still contain them.
    fn leaves_room(&self, batch: u64, tickets: &BTreeSet<Ticket>) -> bool {
        (0..=self.settings.max_staleness).all(|later| {
            let left = self.due(batch + later).difference(tickets).count() as u64;
            left <= later * self.settings.groups_per_batch
        })
    }

    /// Checks a batch that may have waited for groups: it leaves room for the others, and is the first by completion if
    /// that would as well. The groups of the batch are not in `ready` any more.
    fn check_waited(&self, batch: u64, tickets: &[Ticket], indices: &BTreeMap<Ticket, u64>) {
        let mut before = self.clone();
        for ticket in tickets {
            before.ready.insert(*ticket, (self.oldest[ticket], indices[ticket]));
        }
        let own: BTreeSet<Ticket> = tickets.iter().copied().collect();
        assert!(before.leaves_room(batch, &own), "SCHED-7: a group was left behind");
        let mut first: Vec<(u64, Ticket)> = before.ready.iter().map(|(t, (_, index))| (*index, *t)).collect();
        first.sort_unstable();
        let first: BTreeSet<Ticket> = first.into_iter().take(tickets.len()).map(|(_, t)| t).collect();
        assert!(own == first || !before.leaves_room(batch, &first), "SCHED-4");
    }

    /// True if a batch of ready groups exists that leaves no group behind.
    fn can_wait_no_more(&self, batch: u64) -> bool {
        let size = self.settings.groups_per_batch;
        let enough = |later: u64| {
            let due = self.due(batch + later);
            let ready = due.iter().filter(|t| self.ready.contains_key(t)).count() as u64;
            ready + later * size >= due.len() as u64
        };
        self.ready.len() as u64 >= size && (0..=self.settings.max_staleness).all(enough)
    }

    fn drop_group(&mut self, ticket: Ticket, end: End) {
        let held = self.running.remove(&ticket).is_some() | self.ready.remove(&ticket).is_some();
        let deferred = self.deferred.remove(&ticket);
        assert!(self.ends.insert(ticket, end).is_none(), "SCHED-5");
        match end {
            End::Trained => panic!("a trained group is not dropped"),
            End::Filtered | End::Failed => self.replaced += 1,
            End::Stale => {
                assert!(held && self.settings.stragglers == Stragglers::Drop);
                // In ticket order without over-sampling every group is trained in time.
                assert!(self.settings.cut_order == CutOrder::Completion || self.settings.oversample > 0);
            }
            End::Surplus => assert!(held || deferred),
        }
    }

    /// Makes the next event happen. Returns false if there is none.
    pub(crate) fn step(&mut self, schedule: &Schedule) -> bool {
        let step = self.step;
        self.step += 1;
        let (choice, outcome, age) = schedule.steps.get(step).copied().unwrap_or((step as u64, 7, 0));
        let slow = |t: Ticket| schedule.slow_every > 0 && t.0.is_multiple_of(schedule.slow_every);
        let mut groups: Vec<Ticket> = self.running.keys().copied().filter(|t| !slow(*t)).collect();
        if groups.is_empty() && self.pending.is_none() {
            groups.extend(self.running.keys());
        }
        let options = groups.len() + usize::from(self.pending.is_some());
        if options == 0 {
            return false;
        }
        let pick = (choice % options as u64) as usize;
        let Some(&ticket) = groups.get(pick) else {
            self.finish_pending();
            return true;
        };
        let rejected = (schedule.rejects.0..schedule.rejects.1).contains(&step);
        match outcome {
            _ if self.settings.pin_version => self.complete(ticket, age),
            0 => self.send(SchedulerEvent::GroupFailed(ticket)),
            _ if outcome == 1 || rejected => self.send(SchedulerEvent::GroupFiltered(ticket)),
            _ => self.complete(ticket, age),
        }
        true
    }

    /// Makes a group ready with an oldest version between its start and the current one.
    fn complete(&mut self, ticket: Ticket, age: u64) {
        let started = self.running.remove(&ticket).unwrap();
        let oldest = started + age % (self.version() - started + 1);
        self.ready.insert(ticket, (oldest, self.completions));
        self.completions += 1;
        self.send(SchedulerEvent::GroupReady { ticket, oldest: PolicyVersion(oldest) });
    }

    pub(crate) fn finish_pending(&mut self) {
        let event = self.pending.take().unwrap();
        if event == SchedulerEvent::BatchTrained {
            let tickets = self.training.take().unwrap();
            for &ticket in &tickets {
                assert!(self.ends.insert(ticket, End::Trained).is_none(), "SCHED-5");
            }
            self.batches.push(tickets);
            for ReusedGroup { ticket, reuse } in self.reusing.drain(..) {
                self.reuses.insert(ticket, reuse);
            }
        }
        self.send(event);
    }

    /// Runs to the end of the stage.
    pub(crate) fn finish(&mut self, schedule: &Schedule) {
        while !self.finished {
            assert!(self.step(schedule), "deadlock: {:?}", self.scheduler);
            assert!(self.step < 20_000, "the run does not end: {:?}", self.scheduler);
        }
    }

    /// Checks the invariants that hold after every event.
    fn check(&self) {
        let s = &self.settings;
        let v = self.version();
        let in_flight = self.pending.is_some();
        let in_batch = self.training.as_ref().map_or(0, Vec::len);
        let held = self.running.len() + self.ready.len();
        assert_eq!(self.scheduler.version().0, v);
        assert_eq!(
            self.scheduler.counts(),
            Counts {
                running: self.running.len(),
                ready: self.ready.len(),
                deferred: self.deferred.len(),
                in_batch
            }
        );

        let sum = v * s.groups_per_batch + (held + in_batch) as u64;
        assert!(sum <= (v + 1 + s.max_staleness) * s.groups_per_batch + s.oversample, "SCHED-1");
        assert!(
            (self.deferred.len() as u64) < s.groups_per_batch + s.oversample,
            "deferred groups accumulate"
        );
        let may_admit = s.max_staleness > 0 || !in_flight;
        if may_admit && !self.stopping && !self.finished {
            let needed = (v + 1 + s.max_staleness).min(s.batches) * s.groups_per_batch;
            assert!(sum >= needed, "SCHED-1: slots are free and nothing starts");
            self.check_domains_full(needed);
        }
        if s.max_staleness == 0 && in_flight {
            assert_eq!(held, 0, "SCHED-6");
        }
        let next_batch = v + u64::from(in_batch > 0);
        let versions = self.running.values().chain(self.ready.values().map(|(oldest, _)| oldest));
        for oldest in versions {
            assert!(next_batch < s.batches && oldest + s.max_staleness >= next_batch, "SCHED-7");
        }
        if !in_flight && !self.finished {
            let cuttable = |(domain, wanted): (u32, usize)| {
                let own = |t: &&Ticket| self.domain(**t) == domain;
                let ready = self.ready.keys().filter(own);
                match s.cut_order {
                    CutOrder::Completion if s.stragglers == Stragglers::Wait => self.can_wait_no_more(v),
                    CutOrder::Completion => ready.count() >= wanted,
                    CutOrder::Ticket => {
                        let first_running = self.running.keys().find(own);
                        ready.filter(|t| first_running.is_none_or(|r| *t < r)).count() >= wanted
                    }
                }
            };
            let next = self.quota(v * s.groups_per_batch..(v + 1) * s.groups_per_batch);
            assert!(!next.into_iter().all(cuttable), "SCHED-4: a complete batch was not cut");
        }
        let state = self.scheduler.state();
        assert_eq!(state.open_groups, self.open_groups());
        let kept = state.reuse.groups.len() - state.reuse.groups.values().filter(|g| g.batch == v).count();
        let most = s.reuse.map_or(0, |rule| rule.max_age * s.groups_per_batch);
        assert!(kept as u64 <= most, "SCHED-10: {kept} groups are kept");
    }

    /// Checks that each of the first `slots` slots has a group of its domain, with quotas.
    fn check_domains_full(&self, slots: u64) {
        let trained = self.batches.iter().flatten().chain(self.training.iter().flatten());
        let mut found: BTreeMap<u32, usize> = BTreeMap::new();
        for &ticket in trained.chain(self.running.keys()).chain(self.ready.keys()) {
            *found.entry(self.domain(ticket)).or_default() += 1;
        }
        for (domain, wanted) in self.quota(0..slots).into_iter().filter(|_| !self.slots.is_empty()) {
            assert!(found.get(&domain).is_some_and(|n| *n >= wanted), "SCHED-9: {found:?}");
        }
    }

    fn open_groups(&self) -> Vec<OpenGroup> {
        let running = self
            .running
            .iter()
            .map(|(&ticket, &v)| (ticket, GroupStatus::Running { started: PolicyVersion(v) }));
        let ready = self.ready.iter().map(|(&ticket, &(v, completion_index))| {
            (ticket, GroupStatus::Ready { oldest: PolicyVersion(v), completion_index })
        });
        let deferred = self.deferred.iter().map(|&ticket| (ticket, GroupStatus::Deferred));
        let open_groups: BTreeMap<Ticket, GroupStatus> = running.chain(ready).chain(deferred).collect();
        open_groups.into_iter().map(|(ticket, status)| OpenGroup { ticket, status }).collect()
    }

    /// Asserts that every issued ticket has ended.
    pub(crate) fn check_ends(&self) {
        let issued = self.scheduler.state().next_ticket.0;
        assert!(self.ends.keys().map(|t| t.0).eq(0..issued), "SCHED-5");
    }
}
