//! Single runs, command for command.

use rloom_core::{PolicyVersion, Ticket};
use rloom_sched::{
    AliveGroup, Command, CutOrder, End, Event, Progress, SchedError, Scheduler, SchedulerSettings,
    SchedulerState, Stragglers, UnderWay,
};

const SYNCHRONOUS: SchedulerSettings = SchedulerSettings {
    batch_groups: 2,
    batches: 2,
    max_staleness: 0,
    pin_version: false,
    oversample: 0,
    cut_order: CutOrder::Ticket,
    stragglers: Stragglers::Drop,
    evaluate_every: 0,
    checkpoint_every: 0,
};

fn begun(settings: SchedulerSettings) -> Scheduler {
    let mut scheduler = Scheduler::new(settings).unwrap();
    scheduler.handle(Event::Begin).unwrap();
    scheduler
}

fn ready(scheduler: &mut Scheduler, ticket: u64) -> Vec<Command> {
    let oldest = scheduler.version();
    scheduler.handle(Event::GroupReady { ticket: Ticket(ticket), oldest }).unwrap()
}

fn start(tickets: &[u64]) -> Vec<Command> {
    tickets.iter().map(|&t| Command::StartGroup(Ticket(t))).collect()
}

fn train(batch: u64, tickets: &[u64]) -> Command {
    Command::TrainBatch { batch, tickets: tickets.iter().map(|&t| Ticket(t)).collect() }
}

#[test]
fn a_synchronous_run() {
    let settings = SchedulerSettings { evaluate_every: 1, ..SYNCHRONOUS };
    let mut s = Scheduler::new(settings).unwrap();
    assert_eq!(s.handle(Event::Begin).unwrap(), [Command::Evaluate(PolicyVersion(0))]);
    assert_eq!(s.handle(Event::Evaluated).unwrap(), start(&[0, 1]));
    assert_eq!(ready(&mut s, 1), []);
    assert_eq!(ready(&mut s, 0), [train(0, &[0, 1])]);
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), [Command::Evaluate(PolicyVersion(1))]);
    assert_eq!(s.handle(Event::Evaluated).unwrap(), start(&[2, 3]));
    let replaced = [Command::Drop(Ticket(2), End::Filtered), Command::StartGroup(Ticket(4))];
    assert_eq!(s.handle(Event::GroupFiltered(Ticket(2))).unwrap(), replaced);
    assert_eq!(ready(&mut s, 4), []);
    assert_eq!(ready(&mut s, 3), [train(1, &[3, 4])]);
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), [Command::Evaluate(PolicyVersion(2))]);
    assert_eq!(s.handle(Event::Evaluated).unwrap(), [Command::Checkpoint(PolicyVersion(2))]);
    assert_eq!(s.handle(Event::Checkpointed).unwrap(), [Command::Finish]);
}

#[test]
fn rollouts_go_on_beside_training_evaluation_and_saving() {
    let settings = SchedulerSettings {
        batches: 4,
        max_staleness: 1,
        evaluate_every: 1,
        checkpoint_every: 1,
        ..SYNCHRONOUS
    };
    let mut s = Scheduler::new(settings).unwrap();
    let mut first = vec![Command::Evaluate(PolicyVersion(0))];
    first.extend(start(&[0, 1, 2, 3]));
    assert_eq!(s.handle(Event::Begin).unwrap(), first);
    assert_eq!(ready(&mut s, 0), []);
    assert_eq!(ready(&mut s, 1), [], "a batch is not cut beside an evaluation");
    assert_eq!(s.handle(Event::Evaluated).unwrap(), [train(0, &[0, 1])]);
    let replaced = [Command::Drop(Ticket(2), End::Failed), Command::StartGroup(Ticket(4))];
    assert_eq!(s.handle(Event::GroupFailed(Ticket(2))).unwrap(), replaced);
    let mut next = vec![Command::Evaluate(PolicyVersion(1))];
    next.extend(start(&[5, 6]));
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), next);
    assert_eq!(s.handle(Event::Evaluated).unwrap(), [Command::Checkpoint(PolicyVersion(1))]);
    assert_eq!(ready(&mut s, 4), []);
    assert_eq!(ready(&mut s, 3), []);
    assert_eq!(s.handle(Event::Checkpointed).unwrap(), [train(1, &[3, 4])]);
}

#[test]
fn an_over_sampled_batch_is_cut_early() {
    let settings = SchedulerSettings { oversample: 2, cut_order: CutOrder::Completion, ..SYNCHRONOUS };
    let mut s = Scheduler::new(settings).unwrap();
    assert_eq!(s.handle(Event::Begin).unwrap(), start(&[0, 1, 2, 3]));
    assert_eq!(ready(&mut s, 3), []);
    let cut = [Command::Drop(Ticket(0), End::Stale), Command::Drop(Ticket(2), End::Stale), train(0, &[3, 1])];
    assert_eq!(ready(&mut s, 1), cut);
    // The last batch has nothing beyond it to over-sample for.
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), start(&[4, 5]));
}

#[test]
fn stragglers_have_a_batch_of_their_own() {
    let settings = SchedulerSettings {
        batches: 4,
        oversample: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::PutOff,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    ready(&mut s, 1);
    assert_eq!(ready(&mut s, 2), [Command::PutOff(Ticket(0)), train(0, &[1, 2])]);
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), start(&[3, 4, 5]), "one is not a batch");
    ready(&mut s, 5);
    assert_eq!(ready(&mut s, 3), [Command::PutOff(Ticket(4)), train(1, &[5, 3])]);
    assert_eq!(
        s.handle(Event::BatchTrained).unwrap(),
        start(&[0, 4]),
        "their round, and nothing beside them"
    );
    assert_eq!(s.started(Ticket(0)), Some(PolicyVersion(2)));
    assert_eq!(ready(&mut s, 4), []);
    let replaced = [Command::Drop(Ticket(0), End::Failed), Command::StartGroup(Ticket(6))];
    assert_eq!(s.handle(Event::GroupFailed(Ticket(0))).unwrap(), replaced);
    assert_eq!(ready(&mut s, 6), [train(2, &[4, 6])]);
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), start(&[7, 8]));
}

#[test]
fn too_old_for_the_next_batch_ends_at_the_cut() {
    let settings = SchedulerSettings {
        batch_groups: 1,
        batches: 9,
        max_staleness: 1,
        cut_order: CutOrder::Completion,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    assert_eq!(ready(&mut s, 1), [train(0, &[1])]);
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), start(&[2]));
    let cut = [Command::Drop(Ticket(0), End::Stale), train(1, &[2]), Command::StartGroup(Ticket(3))];
    assert_eq!(ready(&mut s, 2), cut, "the slow one, of version 0, could be in batch 1 at the latest");
    // One that says it is older than its start is held to its word.
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), start(&[4]));
    let old = Event::GroupReady { ticket: Ticket(4), oldest: PolicyVersion(0) };
    let ended = [Command::Drop(Ticket(4), End::Stale), Command::StartGroup(Ticket(5))];
    assert_eq!(s.handle(old).unwrap(), ended);
}

#[test]
fn what_is_left_after_the_last_cut_is_surplus() {
    let settings = SchedulerSettings {
        batch_groups: 1,
        max_staleness: 1,
        oversample: 2,
        cut_order: CutOrder::Completion,
        batches: 3,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    assert_eq!(ready(&mut s, 3)[0], train(0, &[3]));
    s.handle(Event::BatchTrained).unwrap();
    ready(&mut s, 0);
    s.handle(Event::BatchTrained).unwrap();
    let commands = ready(&mut s, 4);
    assert_eq!(commands.last(), Some(&train(2, &[4])));
    assert!(commands[..commands.len() - 1].iter().all(|c| matches!(c, Command::Drop(_, End::Surplus))));
    assert_eq!(s.counts().running + s.counts().ready, 0);
}

#[test]
fn a_ready_group_is_not_put_off() {
    let settings = SchedulerSettings {
        batches: 3,
        oversample: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::PutOff,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    ready(&mut s, 0);
    ready(&mut s, 1);
    assert_eq!(s.handle(Event::BatchTrained).unwrap(), start(&[3, 4, 5]));
    let old = Event::GroupReady { ticket: Ticket(3), oldest: PolicyVersion(0) };
    assert_eq!(
        s.handle(old).unwrap(),
        [Command::Drop(Ticket(3), End::Stale), Command::StartGroup(Ticket(6))]
    );
}

#[test]
fn what_new_settings_make_hopeless_is_not_started_again() {
    let settings = SchedulerSettings { batches: 9, max_staleness: 2, ..SYNCHRONOUS };
    let mut s = begun(settings);
    for batch in 0..2 {
        ready(&mut s, 2 * batch);
        ready(&mut s, 2 * batch + 1);
        s.handle(Event::BatchTrained).unwrap();
    }
    let state = s.state();
    let resumed =
        |settings| Scheduler::resume(settings, state.clone()).unwrap().handle(Event::Begin).unwrap();
    let stricter = resumed(SchedulerSettings { max_staleness: 1, ..settings });
    let mut expected = vec![Command::Drop(Ticket(4), End::Stale), Command::Drop(Ticket(5), End::Stale)];
    expected.extend(start(&[6, 7, 8, 9]));
    assert_eq!(stricter, expected);
    let shorter = resumed(SchedulerSettings { batches: 2, ..settings });
    let surplus = shorter.iter().filter(|c| matches!(c, Command::Drop(_, End::Surplus)));
    assert_eq!(surplus.count(), 6);
    assert!(shorter.iter().all(|c| !matches!(c, Command::StartGroup(_))));
}

#[test]
fn a_stop_before_the_begin_waits_for_it() {
    let mut s = Scheduler::new(SYNCHRONOUS).unwrap();
    assert_eq!(s.handle(Event::StopRequested).unwrap(), []);
    assert_eq!(s.handle(Event::Begin).unwrap(), [Command::Finish]);
    assert_eq!(s.handle(Event::Begin), Err(SchedError::BegunTwice));
}

#[test]
fn what_was_not_asked_for_is_an_error() {
    let settings = SchedulerSettings { batch_groups: 1, batches: 1, ..SYNCHRONOUS };
    let mut s = begun(settings);
    for event in [Event::BatchTrained, Event::Evaluated, Event::Checkpointed] {
        assert!(matches!(s.handle(event), Err(SchedError::NotAsked(_))));
    }
    let unknown = Ticket(9);
    let oldest = PolicyVersion(0);
    for event in [
        Event::GroupReady { ticket: unknown, oldest },
        Event::GroupFiltered(unknown),
        Event::GroupFailed(unknown),
    ] {
        assert!(matches!(s.handle(event), Err(SchedError::NotRunning { ticket: Ticket(9), .. })));
    }
    assert_eq!(ready(&mut s, 0), [train(0, &[0])]);
    let again = Event::GroupReady { ticket: Ticket(0), oldest };
    assert!(matches!(s.handle(again), Err(SchedError::NotRunning { .. })));
}

#[test]
fn a_pinned_group_is_not_replaced() {
    let mut s = begun(SchedulerSettings { pin_version: true, max_staleness: 2, ..SYNCHRONOUS });
    let error = s.handle(Event::GroupFiltered(Ticket(0))).unwrap_err();
    assert_eq!(error, SchedError::Pinned { ticket: Ticket(0), what: "filtered" });
    assert!(error.to_string().contains("hint: "));
}

#[test]
fn settings_that_no_run_can_have() {
    let pinned = SchedulerSettings { pin_version: true, ..SYNCHRONOUS };
    let tails = SchedulerSettings {
        oversample: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::PutOff,
        ..SYNCHRONOUS
    };
    assert_eq!(pinned.validate(), Ok(()));
    assert_eq!(tails.validate(), Ok(()));
    let refused = [
        (SchedulerSettings { batch_groups: 0, ..SYNCHRONOUS }, "at least one group"),
        (SchedulerSettings { cut_order: CutOrder::Completion, ..pinned }, "ticket order"),
        (SchedulerSettings { oversample: 1, ..pinned }, "no over-sampling"),
        (SchedulerSettings { max_staleness: 1, ..tails }, "staleness bound of 0"),
        (SchedulerSettings { cut_order: CutOrder::Ticket, ..tails }, "completion order"),
        (SchedulerSettings { oversample: 0, ..tails }, "needs over-sampling"),
    ];
    for (settings, why) in refused {
        let error = Scheduler::new(settings).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn states_that_cannot_be() {
    let running = |ticket, started| AliveGroup {
        ticket: Ticket(ticket),
        progress: Progress::Running { started: PolicyVersion(started) },
    };
    let ready = |ticket, place| AliveGroup {
        ticket: Ticket(ticket),
        progress: Progress::Ready { oldest: PolicyVersion(0), place },
    };
    let good = SchedulerState {
        version: PolicyVersion(1),
        next_ticket: Ticket(9),
        completions: 5,
        alive: vec![running(3, 1), ready(4, 4)],
        under_way: UnderWay::Training(vec![Ticket(1), Ticket(2)]),
        ..SchedulerState::default()
    };
    assert!(Scheduler::resume(SYNCHRONOUS, good.clone()).is_ok());
    let alive = |alive| SchedulerState { alive, ..good.clone() };
    let trains = |tickets: &[u64]| SchedulerState {
        under_way: UnderWay::Training(tickets.iter().map(|&t| Ticket(t)).collect()),
        ..good.clone()
    };
    let refused = [
        (alive(vec![running(4, 1), running(3, 1)]), "not in order"),
        (alive(vec![running(3, 1), running(3, 1)]), "not in order"),
        (alive(vec![running(9, 1)]), "not given out"),
        (alive(vec![running(3, 2)]), "a version that there is not"),
        (alive(vec![ready(3, 5)]), "completed"),
        (alive(vec![ready(3, 1), ready(4, 1)]), "completed"),
        (alive(vec![AliveGroup { ticket: Ticket(3), progress: Progress::PutOff }]), "put off"),
        (trains(&[1]), "another size"),
        (trains(&[1, 1]), "cannot be in it"),
        (trains(&[1, 3]), "cannot be in it"),
        (trains(&[1, 9]), "cannot be in it"),
    ];
    for (state, why) in refused {
        let error = Scheduler::resume(SYNCHRONOUS, state).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
