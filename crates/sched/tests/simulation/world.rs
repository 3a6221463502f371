//! A world that carries out what the scheduler says, in an order drawn by the test, and holds every command and every
//! state against the rules.

use std::collections::{BTreeMap, BTreeSet};

use rloom_core::{PolicyVersion, Ticket};
use rloom_sched::{
    AliveGroup, Command, Counts, CutOrder, End, Event, Progress, Scheduler, SchedulerSettings,
    SchedulerState, Stragglers, UnderWay,
};

/// What a test draws: in which order things happen, and what becomes of groups.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// For each step: what happens, what becomes of a group, and which version is its oldest.
    pub(crate) steps: Vec<(u64, u8, u64)>,
    /// Steps between which every group that comes is filtered.
    pub(crate) rejects: (usize, usize),
    /// Every so many tickets one is slow: it comes only when nothing else can.
    pub(crate) slow_every: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) settings: SchedulerSettings,
    pub(crate) scheduler: Scheduler,
    /// Running groups and the versions under which they started.
    pub(crate) running: BTreeMap<Ticket, u64>,
    /// Ready groups, their oldest versions and their places.
    ready: BTreeMap<Ticket, (u64, u64)>,
    put_off: BTreeSet<Ticket>,
    ever_put_off: BTreeSet<Ticket>,
    pub(crate) ends: BTreeMap<Ticket, End>,
    training: Option<Vec<Ticket>>,
    pub(crate) pending: Option<Event>,
    completions: u64,
    pub(crate) batches: Vec<Vec<Ticket>>,
    pub(crate) evaluations: Vec<u64>,
    pub(crate) checkpoints: Vec<u64>,
    pub(crate) finished: bool,
    stopping: bool,
    /// Groups replaced since the last cut.
    replaced: usize,
    /// Tickets that were put off when the last batch was cut.
    put_off_before: usize,
    /// What the scheduler was told and said.
    pub(crate) log: Vec<(Event, Vec<Command>)>,
    /// What the checkpoints hold, with the length of the log at that time.
    pub(crate) saved: Vec<(usize, SchedulerState)>,
    step: usize,
}

impl World {
    pub(crate) fn new(settings: SchedulerSettings) -> Self {
        let mut world = Self {
            settings,
            scheduler: Scheduler::new(settings).unwrap(),
            running: BTreeMap::new(),
            ready: BTreeMap::new(),
            put_off: BTreeSet::new(),
            ever_put_off: BTreeSet::new(),
            ends: BTreeMap::new(),
            training: None,
            pending: None,
            completions: 0,
            batches: Vec::new(),
            evaluations: Vec::new(),
            checkpoints: Vec::new(),
            finished: false,
            stopping: false,
            replaced: 0,
            put_off_before: 0,
            log: Vec::new(),
            saved: Vec::new(),
            step: 0,
        };
        world.tell(Event::Begin);
        world
    }

    fn version(&self) -> u64 {
        self.batches.len() as u64
    }

    /// Tells the scheduler, and does what it says.
    pub(crate) fn tell(&mut self, event: Event) {
        self.stopping |= event == Event::StopRequested;
        let commands = self.scheduler.handle(event).unwrap();
        for command in &commands {
            assert!(!self.finished, "{command:?} after the end");
            self.carry_out(command);
        }
        let saves = commands.iter().any(|c| matches!(c, Command::Checkpoint(_)));
        self.log.push((event, commands));
        if saves {
            self.saved.push((self.log.len(), self.scheduler.state()));
        }
        self.check();
    }

    fn carry_out(&mut self, command: &Command) {
        match command {
            Command::StartGroup(ticket) => self.start(*ticket),
            Command::PutOff(ticket) => {
                assert_eq!(self.settings.stragglers, Stragglers::PutOff);
                assert!(self.running.remove(ticket).is_some(), "only a group that runs is put off");
                assert!(self.put_off.insert(*ticket));
                assert!(self.ever_put_off.insert(*ticket), "a group is put off once");
            }
            Command::TrainBatch { batch, tickets } => self.train(*batch, tickets),
            Command::Drop(ticket, end) => self.drop_group(*ticket, *end),
            Command::Evaluate(version) => {
                assert_eq!(version.0, self.version());
                self.ask(Event::Evaluated);
                self.evaluations.push(version.0);
            }
            Command::Checkpoint(version) => {
                assert_eq!(version.0, self.version());
                self.ask(Event::Checkpointed);
                self.checkpoints.push(version.0);
            }
            Command::Finish => {
                assert!(self.pending.is_none());
                assert!(self.stopping || (self.running.is_empty() && self.ready.is_empty()));
                self.finished = true;
            }
        }
    }

    fn ask(&mut self, answer: Event) {
        assert!(self.pending.replace(answer).is_none(), "SCHED-6: one thing at a time");
    }

    fn start(&mut self, ticket: Ticket) {
        assert!(!self.ends.contains_key(&ticket), "SCHED-5");
        let again = self.put_off.remove(&ticket);
        assert_eq!(
            again,
            self.ever_put_off.contains(&ticket),
            "a ticket starts once, and once more if put off"
        );
        if !again && self.ever_put_off_runs() {
            assert!(
                self.put_off.is_empty() && self.replaced > 0,
                "a round of those put off has others in it"
            );
        }
        assert!(self.running.insert(ticket, self.version()).is_none());
        if self.settings.pin_version {
            let batch = ticket.0 / self.settings.batch_groups;
            let pinned = batch.saturating_sub(self.settings.max_staleness);
            assert_eq!(pinned, self.version(), "SCHED-8: {ticket:?}");
        }
    }

    fn ever_put_off_runs(&self) -> bool {
        self.running.keys().chain(self.ready.keys()).any(|t| self.ever_put_off.contains(t))
    }

    fn train(&mut self, batch: u64, tickets: &[Ticket]) {
        assert_eq!(batch, self.version());
        assert_eq!(tickets.len() as u64, self.settings.batch_groups);
        let mut places = Vec::new();
        for ticket in tickets {
            let (oldest, place) = self.ready.remove(ticket).expect("only ready groups are trained");
            assert!(batch - oldest <= self.settings.max_staleness, "SCHED-2");
            places.push(place);
        }
        match self.settings.cut_order {
            CutOrder::Ticket => {
                assert!(tickets.is_sorted(), "SCHED-4");
                let next = self.running.keys().chain(self.ready.keys()).min();
                assert!(next.is_none_or(|n| n > tickets.last().unwrap()), "SCHED-4");
            }
            CutOrder::Completion => {
                assert!(places.is_sorted(), "SCHED-4");
                let next = self.ready.values().map(|(_, place)| place).min();
                assert!(next.is_none_or(|n| n > places.last().unwrap()), "SCHED-4");
            }
        }
        let were_put_off = tickets.iter().filter(|t| self.ever_put_off.contains(t)).count();
        if self.put_off_before < tickets.len() {
            assert_eq!(were_put_off, 0, "those put off have no batch yet");
        } else {
            assert!(tickets.len() - were_put_off <= self.replaced, "those put off were due");
        }
        self.replaced = 0;
        self.put_off_before = self.put_off.len();
        self.training = Some(tickets.to_vec());
        self.ask(Event::BatchTrained);
    }

    fn drop_group(&mut self, ticket: Ticket, end: End) {
        let held = self.running.remove(&ticket).is_some() | self.ready.remove(&ticket).is_some();
        let waits = self.put_off.remove(&ticket);
        assert!(self.ends.insert(ticket, end).is_none(), "SCHED-5");
        match end {
            End::Trained => panic!("a trained group is not dropped"),
            End::Filtered | End::Failed => self.replaced += 1,
            End::Stale => {
                assert!(held && self.settings.stragglers == Stragglers::Drop);
                // In ticket order everyone's turn comes in time.
                assert!(self.settings.cut_order == CutOrder::Completion || self.settings.oversample > 0);
            }
            End::Surplus => assert!(held || waits),
        }
    }

    /// Makes the next thing happen. False when nothing can.
    pub(crate) fn happen(&mut self, schedule: &Schedule) -> bool {
        let step = self.step;
        self.step += 1;
        let (choice, fate, age) = schedule.steps.get(step).copied().unwrap_or((step as u64, 7, 0));
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
        match fate {
            _ if self.settings.pin_version => self.complete(ticket, age),
            0 => self.tell(Event::GroupFailed(ticket)),
            _ if fate == 1 || rejected => self.tell(Event::GroupFiltered(ticket)),
            _ => self.complete(ticket, age),
        }
        true
    }

    /// A group becomes ready, its oldest version anywhere between its start and now.
    fn complete(&mut self, ticket: Ticket, age: u64) {
        let started = self.running.remove(&ticket).unwrap();
        let oldest = started + age % (self.version() - started + 1);
        self.ready.insert(ticket, (oldest, self.completions));
        self.completions += 1;
        self.tell(Event::GroupReady { ticket, oldest: PolicyVersion(oldest) });
    }

    pub(crate) fn finish_pending(&mut self) {
        let event = self.pending.take().unwrap();
        if event == Event::BatchTrained {
            let tickets = self.training.take().unwrap();
            for &ticket in &tickets {
                assert!(self.ends.insert(ticket, End::Trained).is_none(), "SCHED-5");
            }
            self.batches.push(tickets);
        }
        self.tell(event);
    }

    /// Lets things happen to the end.
    pub(crate) fn finish(&mut self, schedule: &Schedule) {
        while !self.finished {
            assert!(self.happen(schedule), "deadlock: {:?}", self.scheduler);
            assert!(self.step < 20_000, "no end: {:?}", self.scheduler);
        }
    }

    /// What holds after every event.
    fn check(&self) {
        let s = &self.settings;
        let v = self.version();
        let under_way = self.pending.is_some();
        let in_batch = self.training.as_ref().map_or(0, Vec::len);
        let held = self.running.len() + self.ready.len();
        assert_eq!(self.scheduler.version().0, v);
        assert_eq!(
            self.scheduler.counts(),
            Counts {
                running: self.running.len(),
                ready: self.ready.len(),
                put_off: self.put_off.len(),
                in_batch
            }
        );

        let sum = v * s.batch_groups + (held + in_batch) as u64;
        assert!(sum <= (v + 1 + s.max_staleness) * s.batch_groups + s.oversample, "SCHED-1");
        assert!((self.put_off.len() as u64) < s.batch_groups + s.oversample, "those put off pile up");
        let beside = s.max_staleness > 0 || !under_way;
        if beside && !self.stopping && !self.finished {
            let needed = (v + 1 + s.max_staleness).min(s.batches) * s.batch_groups;
            assert!(sum >= needed, "SCHED-1: there is room, and nothing starts");
        }
        if s.max_staleness == 0 && under_way {
            assert_eq!(held, 0, "SCHED-6");
        }
        let next_batch = v + u64::from(in_batch > 0);
        let versions = self.running.values().chain(self.ready.values().map(|(oldest, _)| oldest));
        for oldest in versions {
            assert!(next_batch < s.batches && oldest + s.max_staleness >= next_batch, "SCHED-7");
        }
        if !under_way && !self.finished {
            let size = s.batch_groups as usize;
            let cuttable = match s.cut_order {
                CutOrder::Completion => self.ready.len() >= size,
                CutOrder::Ticket => {
                    let first_running = self.running.keys().next();
                    let in_line = self.ready.keys().filter(|t| first_running.is_none_or(|r| *t < r));
                    in_line.count() >= size
                }
            };
            assert!(!cuttable, "SCHED-4: a batch is there, and nobody cuts it");
        }
        assert_eq!(self.scheduler.state().alive, self.alive());
    }

    fn alive(&self) -> Vec<AliveGroup> {
        let running = self
            .running
            .iter()
            .map(|(&ticket, &v)| (ticket, Progress::Running { started: PolicyVersion(v) }));
        let ready = self
            .ready
            .iter()
            .map(|(&ticket, &(v, place))| (ticket, Progress::Ready { oldest: PolicyVersion(v), place }));
        let put_off = self.put_off.iter().map(|&ticket| (ticket, Progress::PutOff));
        let alive: BTreeMap<Ticket, Progress> = running.chain(ready).chain(put_off).collect();
        alive.into_iter().map(|(ticket, progress)| AliveGroup { ticket, progress }).collect()
    }

    /// The process dies and comes again: the scheduler is made from what was saved, after so many entries of the log, and
    /// told again what the log has since then. It must say the same again, and the world goes on.
    pub(crate) fn restart(&mut self, from: usize, state: &SchedulerState) {
        let (mut scheduler, more) = resumed(self.settings, state);
        assert_eq!(more, []);
        for (event, commands) in &self.log[from..] {
            assert_eq!(&scheduler.handle(*event).unwrap(), commands, "{event:?} told again");
        }
        assert_eq!(scheduler.state(), self.scheduler.state());
        self.scheduler = scheduler;
    }

    /// The next attempt after a request to stop, of which it knows nothing: the log since `state` is told again, and at
    /// least the same batches are cut.
    pub(crate) fn go_on(&mut self, from: usize, state: &SchedulerState) {
        let (mut scheduler, mut commands) = resumed(self.settings, state);
        let mut cuts = Vec::new();
        if let UnderWay::Training(tickets) = &state.under_way {
            cuts.push(tickets.clone());
        }
        let mut finished = false;
        let told_again: Vec<Event> =
            self.log[from..].iter().map(|(e, _)| *e).filter(|e| *e != Event::StopRequested).collect();
        let mut told_again = told_again.into_iter();
        loop {
            for command in commands {
                match command {
                    Command::TrainBatch { tickets, .. } => {
                        cuts.push(tickets);
                        self.replaced = 0;
                        self.put_off_before = scheduler.counts().put_off;
                    }
                    Command::Drop(ticket, end) => {
                        self.ends.insert(ticket, end);
                    }
                    Command::Evaluate(version) => self.evaluations.push(version.0),
                    Command::Finish => finished = true,
                    Command::StartGroup(_) | Command::PutOff(_) | Command::Checkpoint(_) => {}
                }
            }
            let Some(event) = told_again.next() else { break };
            commands = scheduler.handle(event).unwrap();
        }
        self.evaluations.dedup();
        let mut recorded = self.batches.iter().chain(&self.training).skip(state.version.0 as usize);
        assert!(cuts.iter().all(|cut| recorded.next().is_none_or(|r| r == cut)), "{cuts:?}");
        assert_eq!(recorded.next(), None);
        self.follow(scheduler, finished);
    }

    /// The world after a restart that knows nothing but what the scheduler knows.
    pub(crate) fn follow(&mut self, scheduler: Scheduler, finished: bool) {
        let state = scheduler.state();
        self.running.clear();
        self.ready.clear();
        self.put_off.clear();
        for group in &state.alive {
            match group.progress {
                Progress::Running { started } => {
                    self.running.insert(group.ticket, started.0);
                }
                Progress::Ready { oldest, place } => {
                    self.ready.insert(group.ticket, (oldest.0, place));
                }
                Progress::PutOff => {
                    self.put_off.insert(group.ticket);
                }
            }
        }
        self.ever_put_off.extend(&self.put_off);
        self.training = None;
        self.pending = match state.under_way {
            UnderWay::Nothing => None,
            UnderWay::Training(tickets) => {
                self.training = Some(tickets);
                Some(Event::BatchTrained)
            }
            UnderWay::Evaluating => Some(Event::Evaluated),
            UnderWay::Saving => Some(Event::Checkpointed),
        };
        self.completions = state.completions;
        self.scheduler = scheduler;
        self.stopping = false;
        self.finished = finished;
        self.check();
    }

    /// Every ticket that was given out has ended.
    pub(crate) fn check_ends(&self) {
        let given_out = self.scheduler.state().next_ticket.0;
        assert!(self.ends.keys().map(|t| t.0).eq(0..given_out), "SCHED-5");
    }
}

/// A scheduler made from a state that went through a file, and begun. It says again what is under way; what it says
/// beyond that is returned.
pub(crate) fn resumed(settings: SchedulerSettings, state: &SchedulerState) -> (Scheduler, Vec<Command>) {
    let state: SchedulerState = serde_json::from_slice(&serde_json::to_vec(state).unwrap()).unwrap();
    let mut scheduler = Scheduler::resume(settings, state.clone()).unwrap();
    assert_eq!(scheduler.state(), state);
    let mut again: Vec<Command> = state
        .alive
        .iter()
        .filter(|g| matches!(g.progress, Progress::Running { .. }))
        .map(|g| Command::StartGroup(g.ticket))
        .collect();
    again.extend(match &state.under_way {
        UnderWay::Nothing => None,
        UnderWay::Training(tickets) => {
            Some(Command::TrainBatch { batch: state.version.0, tickets: tickets.clone() })
        }
        UnderWay::Evaluating => Some(Command::Evaluate(state.version)),
        UnderWay::Saving => Some(Command::Checkpoint(state.version)),
    });
    let commands = scheduler.handle(Event::Begin).unwrap();
    let (said_again, more) = commands.split_at(again.len());
    assert_eq!(said_again, again);
    (scheduler, more.to_vec())
}
