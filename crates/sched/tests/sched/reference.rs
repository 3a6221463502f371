//! Reference implementation of the rules: every event scans every group. It has no pauses during rollouts and ends stale
//! groups only when the next batch is cut, so it is comparable where neither makes a difference.

use std::collections::BTreeMap;

use rloom_core::{PolicyVersion, RandomKey, Ticket};
use rloom_sched::{CutOrder, End, ReusedGroup, SchedulerCommand, SchedulerEvent, SchedulerSettings};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// Oldest version and completion index.
    Ready(PolicyVersion, u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    Nothing,
    Training,
    Evaluating,
    Checkpointing,
}

pub(crate) struct Reference {
    settings: SchedulerSettings,
    version: PolicyVersion,
    next_ticket: Ticket,
    open_groups: BTreeMap<Ticket, Progress>,
    in_batch: Vec<Ticket>,
    /// Every group that was part of a batch, with its oldest version and the number of its reuses.
    trained: BTreeMap<Ticket, (u64, u64)>,
    completions: u64,
    busy: Busy,
    evaluated: Option<PolicyVersion>,
    saved: PolicyVersion,
    stop_at: Option<u64>,
    finished: bool,
}

impl Reference {
    pub(crate) fn new(settings: SchedulerSettings) -> Self {
        Self {
            settings,
            version: PolicyVersion(0),
            next_ticket: Ticket(0),
            open_groups: BTreeMap::new(),
            in_batch: Vec::new(),
            trained: BTreeMap::new(),
            completions: 0,
            busy: Busy::Nothing,
            evaluated: None,
            saved: PolicyVersion(0),
            stop_at: None,
            finished: false,
        }
    }

    pub(crate) fn handle(&mut self, event: SchedulerEvent) -> Vec<SchedulerCommand> {
        let mut commands = Vec::new();
        match event {
            SchedulerEvent::Begin => {
                commands.extend(self.open_groups.keys().map(|&t| SchedulerCommand::StartGroup(t)));
            }
            SchedulerEvent::GroupReady { ticket, oldest } => {
                *self.open_groups.get_mut(&ticket).unwrap() = Progress::Ready(oldest, self.completions);
                self.completions += 1;
            }
            SchedulerEvent::GroupFiltered(ticket) => self.end(ticket, End::Filtered, &mut commands),
            SchedulerEvent::GroupFailed(ticket) => self.end(ticket, End::Failed, &mut commands),
            SchedulerEvent::BatchTrained => {
                self.done(Busy::Training);
                self.in_batch.clear();
                self.version.0 += 1;
            }
            SchedulerEvent::Evaluated => {
                self.done(Busy::Evaluating);
                self.evaluated = Some(self.version);
            }
            SchedulerEvent::Checkpointed => {
                self.done(Busy::Checkpointing);
                self.saved = self.version;
            }
            SchedulerEvent::StopRequested => {
                let in_flight = self.busy == Busy::Training || !self.open_groups.is_empty();
                self.stop_at.get_or_insert(self.version.0 + u64::from(in_flight));
            }
            SchedulerEvent::StopWithdrawn => self.stop_at = None,
        }
        self.advance(&mut commands);
        commands
    }

    fn done(&mut self, busy: Busy) {
        assert!(self.busy == busy);
        self.busy = Busy::Nothing;
    }

    fn end(&mut self, ticket: Ticket, end: End, commands: &mut Vec<SchedulerCommand>) {
        assert!(self.open_groups.remove(&ticket).is_some());
        commands.push(SchedulerCommand::Drop(ticket, end));
    }

    fn last(&self) -> u64 {
        self.stop_at.map_or(self.settings.batches, |stop| stop.min(self.settings.batches))
    }

    fn over(&self) -> bool {
        self.version.0 >= self.last()
    }

    fn due(&self, every: u64) -> bool {
        every > 0 && self.version.0.is_multiple_of(every)
    }

    fn evaluation_due(&self) -> bool {
        self.settings.evaluate_every > 0
            && self.evaluated != Some(self.version)
            && (self.due(self.settings.evaluate_every) || self.version.0 >= self.settings.batches)
    }

    fn advance(&mut self, commands: &mut Vec<SchedulerCommand>) {
        if self.finished || self.busy != Busy::Nothing {
            if self.busy == Busy::Training {
                self.admit(commands);
            }
            return;
        }
        if self.evaluation_due() && self.stop_at.is_none() {
            self.busy = Busy::Evaluating;
            commands.push(SchedulerCommand::Evaluate(self.version));
            return;
        }
        if self.version.0 >= self.settings.batches {
            let surplus: Vec<Ticket> = self.open_groups.keys().copied().collect();
            for ticket in surplus {
                self.end(ticket, End::Surplus, commands);
            }
        }
        if self.saved != self.version && (self.due(self.settings.checkpoint_every) || self.over()) {
            self.busy = Busy::Checkpointing;
            commands.push(SchedulerCommand::Checkpoint(self.version));
            return;
        }
        if self.over() {
            self.finished = true;
            commands.push(SchedulerCommand::Finish);
            return;
        }
        self.drop_stale(commands);
        self.admit(commands);
        self.cut(commands);
    }

    fn drop_stale(&mut self, commands: &mut Vec<SchedulerCommand>) {
        let bound = self.version.0.saturating_sub(self.settings.max_staleness);
        let stale: Vec<Ticket> = self
            .open_groups
            .iter()
            .filter(|(_, p)| matches!(p, Progress::Ready(oldest, _) if oldest.0 < bound))
            .map(|(&t, _)| t)
            .collect();
        for ticket in stale {
            self.end(ticket, End::Stale, commands);
        }
    }

    fn admit(&mut self, commands: &mut Vec<SchedulerCommand>) {
        let s = &self.settings;
        let ahead = (self.version.0 + 1 + s.max_staleness).min(self.last());
        let bound = ahead * s.groups_per_batch + if ahead < self.last() { s.oversample } else { 0 };
        let trained = self.version.0 * s.groups_per_batch;
        let mut sum = trained + self.in_batch.len() as u64 + self.open_groups.len() as u64;
        while sum < bound {
            let ticket = self.next_ticket;
            self.next_ticket.0 += 1;
            self.open_groups.insert(ticket, Progress::Running);
            commands.push(SchedulerCommand::StartGroup(ticket));
            sum += 1;
        }
    }

    fn cut(&mut self, commands: &mut Vec<SchedulerCommand>) {
        let size = self.settings.groups_per_batch as usize;
        let mut ready: Vec<(u64, Ticket)> = match self.settings.cut_order {
            CutOrder::Ticket => self
                .open_groups
                .iter()
                .take(size)
                .take_while(|(_, p)| matches!(p, Progress::Ready(..)))
                .map(|(&t, _)| (t.0, t))
                .collect(),
            CutOrder::Completion => self
                .open_groups
                .iter()
                .filter_map(|(&t, p)| match p {
                    Progress::Ready(_, place) => Some((*place, t)),
                    Progress::Running => None,
                })
                .collect(),
        };
        ready.sort_unstable();
        let tickets: Vec<Ticket> = ready.into_iter().take(size).map(|(_, t)| t).collect();
        if tickets.len() < size {
            return;
        }
        let reused = self.reuse();
        for ticket in &tickets {
            let Some(Progress::Ready(oldest, _)) = self.open_groups.remove(ticket) else { panic!() };
            self.trained.insert(*ticket, (oldest.0, 0));
        }
        self.in_batch.clone_from(&tickets);
        self.busy = Busy::Training;
        commands.push(SchedulerCommand::TrainBatch { batch: self.version.0, tickets, reused });
        self.admit(commands);
    }

    /// Draws groups one after another from all that may be reused.
    fn reuse(&mut self) -> Vec<ReusedGroup> {
        let Some(rule) = self.settings.reuse else { return Vec::new() };
        let batch = self.version.0;
        let may = |(oldest, uses): &(u64, u64)| *uses < rule.max_uses && batch - oldest <= rule.max_age;
        let mut left: Vec<Ticket> = self.trained.iter().filter(|(_, g)| may(g)).map(|(t, _)| *t).collect();
        let stream = RandomKey { ticket: batch, ..rule.draws }.stream();
        let mut drawn = Vec::new();
        while drawn.len() < rule.groups as usize && !left.is_empty() {
            let place = stream.below(drawn.len() as u64, left.len() as u64) as usize;
            // The first of those left takes the place of the drawn one.
            let first = left[0];
            drawn.push(std::mem::replace(&mut left[place], first));
            left.remove(0);
        }
        drawn.sort_unstable();
        let count = |ticket: Ticket| {
            let (_, uses) = self.trained.get_mut(&ticket).unwrap();
            *uses += 1;
            ReusedGroup { ticket, reuse: *uses }
        };
        drawn.into_iter().map(count).collect()
    }
}
