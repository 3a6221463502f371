//! The scheduler under random worlds: groups finish in any order, fail, are filtered; runs stop and resume. The
//! rules of the crate's documentation are checked after every event.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rloom_core::{PolicyVersion, Ticket};
use rloom_sched::{Command, CutOrder, End, Event, Scheduler, SchedulerSettings};

/// A world that carries out commands in an order drawn by the test.
struct World {
    settings: SchedulerSettings,
    scheduler: Scheduler,
    running: BTreeMap<Ticket, PolicyVersion>,
    ready: BTreeMap<Ticket, PolicyVersion>,
    ends: BTreeMap<Ticket, End>,
    pending: Vec<Event>,
    training: Option<Vec<Ticket>>,
    evaluations: Vec<u64>,
    checkpoints: Vec<u64>,
    batches: Vec<Vec<Ticket>>,
    finished: bool,
}

impl World {
    fn new(settings: SchedulerSettings) -> Self {
        let scheduler = Scheduler::new(settings).unwrap();
        let mut world = Self {
            settings,
            scheduler,
            running: BTreeMap::new(),
            ready: BTreeMap::new(),
            ends: BTreeMap::new(),
            pending: Vec::new(),
            training: None,
            evaluations: Vec::new(),
            checkpoints: Vec::new(),
            batches: Vec::new(),
            finished: false,
        };
        world.tell(Event::Begin);
        world
    }

    fn tell(&mut self, event: Event) {
        let commands = self.scheduler.handle(event).unwrap();
        for command in commands {
            assert!(!self.finished, "{command:?} after the end");
            match command {
                Command::StartGroup(ticket) => {
                    assert!(!self.ends.contains_key(&ticket));
                    assert!(self.running.insert(ticket, self.scheduler.version()).is_none());
                }
                Command::TrainBatch { batch, tickets } => {
                    assert_eq!(batch, self.scheduler.version().0);
                    assert_eq!(tickets.len() as u64, self.settings.batch_groups);
                    for t in &tickets {
                        let oldest = self.ready.remove(t).expect("only ready groups are trained");
                        assert!(batch - oldest.0 <= self.settings.max_staleness, "SCHED-2");
                    }
                    if self.settings.cut_order == CutOrder::Ticket {
                        assert!(tickets.is_sorted(), "SCHED-4");
                        let next = self.running.keys().chain(self.ready.keys()).min();
                        assert!(next.is_none_or(|n| n > tickets.last().unwrap()), "SCHED-4");
                    }
                    assert!(self.training.replace(tickets).is_none());
                    self.pending.push(Event::BatchTrained);
                }
                Command::Drop(ticket, end) => {
                    self.running.remove(&ticket);
                    self.ready.remove(&ticket);
                    assert!(self.ends.insert(ticket, end).is_none(), "SCHED-5");
                }
                Command::Evaluate(v) => {
                    assert_eq!(v, self.scheduler.version());
                    let synchronous = self.settings.max_staleness == 0 && self.settings.oversample == 0;
                    assert!(!synchronous || self.running.is_empty(), "SCHED-6");
                    self.evaluations.push(v.0);
                    self.pending.push(Event::Evaluated);
                }
                Command::Checkpoint(v) => {
                    assert_eq!(v, self.scheduler.version());
                    self.checkpoints.push(v.0);
                    self.pending.push(Event::Checkpointed);
                }
                Command::Finish => self.finished = true,
            }
        }
        let alive =
            (self.running.len() + self.ready.len() + self.training.as_ref().map_or(0, Vec::len)) as u64;
        let v = self.scheduler.version().0;
        let bound =
            (v + 1 + self.settings.max_staleness) * self.settings.batch_groups + self.settings.oversample;
        assert!(v * self.settings.batch_groups + alive <= bound, "SCHED-1");
    }

    /// Makes one thing happen, picked by `choice`. False when nothing can.
    fn happen(&mut self, choice: u64, fate: u8) -> bool {
        let options = self.running.len() + self.pending.len();
        if options == 0 {
            return false;
        }
        let pick = (choice % options as u64) as usize;
        if pick < self.pending.len() {
            let event = self.pending.remove(pick);
            if event == Event::BatchTrained {
                let tickets = self.training.take().unwrap();
                for &t in &tickets {
                    assert!(self.ends.insert(t, End::Trained).is_none(), "SCHED-5");
                }
                self.batches.push(tickets);
            }
            self.tell(event);
        } else {
            let (&ticket, &version) = self.running.iter().nth(pick - self.pending.len()).unwrap();
            self.running.remove(&ticket);
            match fate {
                0 => self.tell(Event::GroupFailed(ticket)),
                1 => self.tell(Event::GroupFiltered(ticket)),
                _ => {
                    self.ready.insert(ticket, version);
                    self.tell(Event::GroupReady { ticket, oldest: version });
                }
            }
        }
        true
    }
}

fn settings() -> impl Strategy<Value = SchedulerSettings> {
    (1u64..5, 0u64..6, 0u64..4, 0u64..4, any::<bool>(), 0u64..4, 0u64..4).prop_map(
        |(batch_groups, batches, max_staleness, oversample, completion, evaluate_every, checkpoint_every)| {
            SchedulerSettings {
                batch_groups,
                batches,
                max_staleness,
                oversample,
                cut_order: if completion { CutOrder::Completion } else { CutOrder::Ticket },
                evaluate_every,
                checkpoint_every,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every world that lets groups through in the end finishes, with every rule kept.
    #[test]
    fn random_worlds_finish(settings in settings(), choices in prop::collection::vec((any::<u64>(), 0u8..8), 1..400)) {
        let mut world = World::new(settings);
        let mut i = 0;
        while !world.finished {
            let (choice, fate) = choices.get(i).copied().unwrap_or((i as u64, 7));
            prop_assert!(world.happen(choice, fate), "deadlock: {:?}", world.scheduler);
            i += 1;
            prop_assert!(i < 10_000);
        }
        prop_assert_eq!(world.batches.len() as u64, settings.batches);
        let trained: BTreeSet<Ticket> = world.batches.iter().flatten().copied().collect();
        prop_assert_eq!(trained.len() as u64, settings.batches * settings.batch_groups);
        if settings.batches > 0 {
            prop_assert_eq!(world.checkpoints.last(), Some(&settings.batches));
        }
        if settings.evaluate_every > 0 {
            prop_assert_eq!(world.evaluations.first(), Some(&0));
            prop_assert_eq!(world.evaluations.last(), Some(&settings.batches));
        }
        prop_assert!(world.scheduler.state().alive.is_empty());
    }

    /// Stopping at any time ends soon, on a saved version, and going on from there trains the same tickets.
    #[test]
    fn a_stop_resumes_to_the_same_batches(
        settings in settings().prop_map(|s| SchedulerSettings { max_staleness: 0, oversample: 0, ..s }),
        stop_after in 0usize..30,
    ) {
        let settings = SchedulerSettings { cut_order: CutOrder::Ticket, ..settings };
        let mut whole = World::new(settings);
        while !whole.finished { whole.happen(0, 7); }

        let mut first = World::new(settings);
        for i in 0..stop_after { if first.finished { break } first.happen(i as u64, 7); }
        if !first.finished { first.tell(Event::StopRequested); }
        let mut i = 0;
        while !first.finished { prop_assert!(first.happen(i, 7)); i += 1; }
        let state = first.scheduler.state();
        let stopped_at = state.version.0;
        if stopped_at > 0 { prop_assert_eq!(first.checkpoints.last().copied(), Some(stopped_at)); }

        let mut second = World::new(settings);
        second.scheduler = Scheduler::resume(settings, state).unwrap();
        second.finished = false; second.running.clear(); second.pending.clear(); second.evaluations.clear(); second.checkpoints.clear(); second.batches.clear();
        second.tell(Event::Begin);
        while !second.finished { prop_assert!(second.happen(0, 7)); }
        let mut batches = first.batches.clone();
        batches.extend(second.batches.iter().cloned());
        prop_assert_eq!(batches, whole.batches);
        let mut evaluations = first.evaluations.clone();
        evaluations.extend(&second.evaluations);
        prop_assert_eq!(evaluations, whole.evaluations);
    }
}

#[test]
fn what_was_not_asked_for_is_an_error() {
    let settings = SchedulerSettings {
        batch_groups: 1,
        batches: 1,
        max_staleness: 0,
        oversample: 0,
        cut_order: CutOrder::Ticket,
        evaluate_every: 0,
        checkpoint_every: 0,
    };
    let mut scheduler = Scheduler::new(settings).unwrap();
    assert_eq!(scheduler.handle(Event::Begin).unwrap(), [Command::StartGroup(Ticket(0))]);
    assert!(scheduler.handle(Event::BatchTrained).is_err());
    assert!(scheduler.handle(Event::GroupReady { ticket: Ticket(9), oldest: PolicyVersion(0) }).is_err());
    let commands =
        scheduler.handle(Event::GroupReady { ticket: Ticket(0), oldest: PolicyVersion(0) }).unwrap();
    assert_eq!(commands, [Command::TrainBatch { batch: 0, tickets: vec![Ticket(0)] }]);
}
