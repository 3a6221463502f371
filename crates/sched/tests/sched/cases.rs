//! Individual runs, checked command for command.

use miette::Diagnostic;
use rloom_core::{PolicyVersion, Purpose, RandomKey, Ticket};
use rloom_sched::{
    CutOrder, End, GroupEvent, GroupStatus, InFlightWork, OpenGroup, SchedError, ScheduleSettings, Scheduler,
    SchedulerCommand, SchedulerEvent, SchedulerSettings, SchedulerState, Stragglers,
};

const SYNCHRONOUS: SchedulerSettings = SchedulerSettings {
    groups_per_batch: 2,
    batches: 2,
    max_staleness: 0,
    pin_version: false,
    oversample: 0,
    cut_order: CutOrder::Ticket,
    stragglers: Stragglers::Drop,
    evaluate_every: 0,
    checkpoint_every: 0,
    reuse: None,
};

fn begun(settings: SchedulerSettings) -> Scheduler {
    let mut scheduler = Scheduler::new(settings).unwrap();
    scheduler.handle(SchedulerEvent::Begin).unwrap();
    scheduler
}

fn ready(scheduler: &mut Scheduler, ticket: u64) -> Vec<SchedulerCommand> {
    let oldest = scheduler.version();
    scheduler.handle(SchedulerEvent::GroupReady { ticket: Ticket(ticket), oldest }).unwrap()
}

fn start(tickets: &[u64]) -> Vec<SchedulerCommand> {
    tickets.iter().map(|&t| SchedulerCommand::StartGroup(Ticket(t))).collect()
}

fn train(batch: u64, tickets: &[u64]) -> SchedulerCommand {
    let tickets = tickets.iter().map(|&t| Ticket(t)).collect();
    SchedulerCommand::TrainBatch { batch, tickets, reused: Vec::new() }
}

#[test]
fn a_synchronous_run() {
    let settings = SchedulerSettings { evaluate_every: 1, ..SYNCHRONOUS };
    let mut s = Scheduler::new(settings).unwrap();
    assert_eq!(s.handle(SchedulerEvent::Begin).unwrap(), [SchedulerCommand::Evaluate(PolicyVersion(0))]);
    assert_eq!(s.handle(SchedulerEvent::Evaluated).unwrap(), start(&[0, 1]));
    assert_eq!(ready(&mut s, 1), []);
    assert_eq!(ready(&mut s, 0), [train(0, &[0, 1])]);
    assert_eq!(
        s.handle(SchedulerEvent::BatchTrained).unwrap(),
        [SchedulerCommand::Evaluate(PolicyVersion(1))]
    );
    assert_eq!(s.handle(SchedulerEvent::Evaluated).unwrap(), start(&[2, 3]));
    let replaced =
        [SchedulerCommand::Drop(Ticket(2), End::Filtered), SchedulerCommand::StartGroup(Ticket(4))];
    assert_eq!(s.handle(SchedulerEvent::GroupFiltered(Ticket(2))).unwrap(), replaced);
    assert_eq!(ready(&mut s, 4), []);
    assert_eq!(ready(&mut s, 3), [train(1, &[3, 4])]);
    assert_eq!(
        s.handle(SchedulerEvent::BatchTrained).unwrap(),
        [SchedulerCommand::Evaluate(PolicyVersion(2))]
    );
    assert_eq!(
        s.handle(SchedulerEvent::Evaluated).unwrap(),
        [SchedulerCommand::Checkpoint(PolicyVersion(2))]
    );
    assert_eq!(s.handle(SchedulerEvent::Checkpointed).unwrap(), [SchedulerCommand::Finish]);
}

#[test]
fn rollouts_continue_during_training_evaluation_and_checkpointing() {
    let settings = SchedulerSettings {
        batches: 4,
        max_staleness: 1,
        evaluate_every: 1,
        checkpoint_every: 1,
        ..SYNCHRONOUS
    };
    let mut s = Scheduler::new(settings).unwrap();
    let mut first = vec![SchedulerCommand::Evaluate(PolicyVersion(0))];
    first.extend(start(&[0, 1, 2, 3]));
    assert_eq!(s.handle(SchedulerEvent::Begin).unwrap(), first);
    assert_eq!(ready(&mut s, 0), []);
    assert_eq!(ready(&mut s, 1), [], "no batch is cut during an evaluation");
    assert_eq!(s.handle(SchedulerEvent::Evaluated).unwrap(), [train(0, &[0, 1])]);
    let replaced = [SchedulerCommand::Drop(Ticket(2), End::Failed), SchedulerCommand::StartGroup(Ticket(4))];
    assert_eq!(s.handle(SchedulerEvent::GroupFailed(Ticket(2))).unwrap(), replaced);
    let mut next = vec![SchedulerCommand::Evaluate(PolicyVersion(1))];
    next.extend(start(&[5, 6]));
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), next);
    assert_eq!(
        s.handle(SchedulerEvent::Evaluated).unwrap(),
        [SchedulerCommand::Checkpoint(PolicyVersion(1))]
    );
    assert_eq!(ready(&mut s, 4), []);
    assert_eq!(ready(&mut s, 3), []);
    assert_eq!(s.handle(SchedulerEvent::Checkpointed).unwrap(), [train(1, &[3, 4])]);
}

#[test]
fn an_over_sampled_batch_is_cut_early() {
    let settings = SchedulerSettings { oversample: 2, cut_order: CutOrder::Completion, ..SYNCHRONOUS };
    let mut s = Scheduler::new(settings).unwrap();
    assert_eq!(s.handle(SchedulerEvent::Begin).unwrap(), start(&[0, 1, 2, 3]));
    assert_eq!(ready(&mut s, 3), []);
    let cut = [
        SchedulerCommand::Drop(Ticket(0), End::Stale),
        SchedulerCommand::Drop(Ticket(2), End::Stale),
        train(0, &[3, 1]),
    ];
    assert_eq!(ready(&mut s, 1), cut);
    // Nothing is over-sampled beyond the last batch.
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[4, 5]));
}

#[test]
fn deferred_stragglers_form_a_batch() {
    let settings = SchedulerSettings {
        batches: 4,
        oversample: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Defer,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    ready(&mut s, 1);
    assert_eq!(ready(&mut s, 2), [SchedulerCommand::Defer(Ticket(0)), train(0, &[1, 2])]);
    assert_eq!(
        s.handle(SchedulerEvent::BatchTrained).unwrap(),
        start(&[3, 4, 5]),
        "one deferred group is not a batch"
    );
    ready(&mut s, 5);
    assert_eq!(ready(&mut s, 3), [SchedulerCommand::Defer(Ticket(4)), train(1, &[5, 3])]);
    assert_eq!(
        s.handle(SchedulerEvent::BatchTrained).unwrap(),
        start(&[0, 4]),
        "a deferred round starts nothing else"
    );
    assert_eq!(s.started(Ticket(0)), Some(PolicyVersion(2)));
    assert_eq!(ready(&mut s, 4), []);
    let replaced = [SchedulerCommand::Drop(Ticket(0), End::Failed), SchedulerCommand::StartGroup(Ticket(6))];
    assert_eq!(s.handle(SchedulerEvent::GroupFailed(Ticket(0))).unwrap(), replaced);
    assert_eq!(ready(&mut s, 6), [train(2, &[4, 6])]);
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[7, 8]));
}

#[test]
fn groups_too_old_for_the_next_batch_end_at_the_cut() {
    let settings = SchedulerSettings {
        groups_per_batch: 1,
        batches: 9,
        max_staleness: 1,
        cut_order: CutOrder::Completion,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    assert_eq!(ready(&mut s, 1), [train(0, &[1])]);
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[2]));
    let cut = [
        SchedulerCommand::Drop(Ticket(0), End::Stale),
        train(1, &[2]),
        SchedulerCommand::StartGroup(Ticket(3)),
    ];
    assert_eq!(ready(&mut s, 2), cut, "the slow group, of version 0, could join batch 1 at the latest");
    // A reported version older than the group's start is trusted.
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[4]));
    let old = SchedulerEvent::GroupReady { ticket: Ticket(4), oldest: PolicyVersion(0) };
    let ended = [SchedulerCommand::Drop(Ticket(4), End::Stale), SchedulerCommand::StartGroup(Ticket(5))];
    assert_eq!(s.handle(old).unwrap(), ended);
}

#[test]
fn groups_left_after_the_last_cut_are_surplus() {
    let settings = SchedulerSettings {
        groups_per_batch: 1,
        max_staleness: 1,
        oversample: 2,
        cut_order: CutOrder::Completion,
        batches: 3,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    assert_eq!(ready(&mut s, 3)[0], train(0, &[3]));
    s.handle(SchedulerEvent::BatchTrained).unwrap();
    ready(&mut s, 0);
    s.handle(SchedulerEvent::BatchTrained).unwrap();
    let commands = ready(&mut s, 4);
    assert_eq!(commands.last(), Some(&train(2, &[4])));
    assert!(
        commands[..commands.len() - 1].iter().all(|c| matches!(c, SchedulerCommand::Drop(_, End::Surplus)))
    );
    assert_eq!(s.counts().running + s.counts().ready, 0);
}

#[test]
fn a_stale_ready_group_is_dropped_and_not_deferred() {
    let settings = SchedulerSettings {
        batches: 3,
        oversample: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Defer,
        ..SYNCHRONOUS
    };
    let mut s = begun(settings);
    ready(&mut s, 0);
    ready(&mut s, 1);
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[3, 4, 5]));
    let old = SchedulerEvent::GroupReady { ticket: Ticket(3), oldest: PolicyVersion(0) };
    assert_eq!(
        s.handle(old).unwrap(),
        [SchedulerCommand::Drop(Ticket(3), End::Stale), SchedulerCommand::StartGroup(Ticket(6))]
    );
}

#[test]
fn groups_made_stale_by_new_settings_are_not_restarted() {
    let settings = SchedulerSettings { batches: 9, max_staleness: 2, ..SYNCHRONOUS };
    let mut s = begun(settings);
    for batch in 0..2 {
        ready(&mut s, 2 * batch);
        ready(&mut s, 2 * batch + 1);
        s.handle(SchedulerEvent::BatchTrained).unwrap();
    }
    let state = s.state();
    let resumed =
        |settings| Scheduler::resume(settings, state.clone()).unwrap().handle(SchedulerEvent::Begin).unwrap();
    let stricter = resumed(SchedulerSettings { max_staleness: 1, ..settings });
    let mut expected =
        vec![SchedulerCommand::Drop(Ticket(4), End::Stale), SchedulerCommand::Drop(Ticket(5), End::Stale)];
    expected.extend(start(&[6, 7, 8, 9]));
    assert_eq!(stricter, expected);
    let shorter = resumed(SchedulerSettings { batches: 2, ..settings });
    let surplus = shorter.iter().filter(|c| matches!(c, SchedulerCommand::Drop(_, End::Surplus)));
    assert_eq!(surplus.count(), 6);
    assert!(shorter.iter().all(|c| !matches!(c, SchedulerCommand::StartGroup(_))));
}

#[test]
fn a_stop_before_begin_takes_effect_at_begin() {
    let mut s = Scheduler::new(SYNCHRONOUS).unwrap();
    assert_eq!(s.handle(SchedulerEvent::StopRequested).unwrap(), []);
    assert_eq!(s.handle(SchedulerEvent::Begin).unwrap(), [SchedulerCommand::Finish]);
    assert_eq!(s.handle(SchedulerEvent::Begin), Err(SchedError::AlreadyBegun));
}

#[test]
fn unexpected_events_are_errors() {
    let settings = SchedulerSettings { groups_per_batch: 1, batches: 1, ..SYNCHRONOUS };
    let mut s = begun(settings);
    for event in [SchedulerEvent::BatchTrained, SchedulerEvent::Evaluated, SchedulerEvent::Checkpointed] {
        assert!(matches!(s.handle(event), Err(SchedError::NotInFlight(_))));
    }
    let unknown = Ticket(9);
    let oldest = PolicyVersion(0);
    for event in [
        SchedulerEvent::GroupReady { ticket: unknown, oldest },
        SchedulerEvent::GroupFiltered(unknown),
        SchedulerEvent::GroupFailed(unknown),
    ] {
        assert!(matches!(s.handle(event), Err(SchedError::NotRunning { ticket: Ticket(9), .. })));
    }
    assert_eq!(ready(&mut s, 0), [train(0, &[0])]);
    let again = SchedulerEvent::GroupReady { ticket: Ticket(0), oldest };
    assert!(matches!(s.handle(again), Err(SchedError::NotRunning { .. })));
}

#[test]
fn a_pinned_group_is_not_replaced() {
    let mut s = begun(SchedulerSettings { pin_version: true, max_staleness: 2, ..SYNCHRONOUS });
    let error = s.handle(SchedulerEvent::GroupFiltered(Ticket(0))).unwrap_err();
    assert_eq!(error, SchedError::Pinned { ticket: Ticket(0), event: GroupEvent::Filtered });
    assert!(error.help().is_some());
}

#[test]
fn invalid_settings_are_rejected() {
    let pinned = SchedulerSettings { pin_version: true, ..SYNCHRONOUS };
    let waits = SchedulerSettings {
        max_staleness: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Wait,
        ..SYNCHRONOUS
    };
    let tails = SchedulerSettings {
        oversample: 1,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Defer,
        ..SYNCHRONOUS
    };
    assert_eq!(pinned.validate(), Ok(()));
    assert_eq!(tails.validate(), Ok(()));
    let refused = [
        (SchedulerSettings { groups_per_batch: 0, ..SYNCHRONOUS }, "at least one group"),
        (
            SchedulerSettings { max_staleness: 0, ..waits },
            "waiting for stragglers requires `max_staleness` above 0",
        ),
        (SchedulerSettings { cut_order: CutOrder::Ticket, ..waits }, "requires `cut_order = \"completion\"`"),
        (SchedulerSettings { oversample: 1, ..waits }, "requires `oversample = 0`"),
        (SchedulerSettings { cut_order: CutOrder::Completion, ..pinned }, "`cut_order = \"ticket\"`"),
        (SchedulerSettings { oversample: 1, ..pinned }, "`oversample = 0`"),
        (SchedulerSettings { max_staleness: 1, ..tails }, "`max_staleness = 0`"),
        (SchedulerSettings { cut_order: CutOrder::Ticket, ..tails }, "`cut_order = \"completion\"`"),
        (SchedulerSettings { oversample: 0, ..tails }, "requires `oversample` above 0"),
    ];
    for (settings, why) in refused {
        let error = Scheduler::new(settings).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// With staleness 2, two groups of the first round that are slow for two batches are due in the third one.
#[test]
fn a_batch_waits_for_groups_that_are_due() {
    let settings = SchedulerSettings {
        batches: 9,
        max_staleness: 2,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Wait,
        ..SYNCHRONOUS
    };
    let ready = |s: &mut Scheduler, ticket| {
        let oldest = PolicyVersion(u64::from(ticket > 5));
        s.handle(SchedulerEvent::GroupReady { ticket: Ticket(ticket), oldest }).unwrap()
    };
    let mut s = begun(settings);
    // Groups 0 to 5 start with version 0. The batches 0 and 1 do not wait for the groups 0 and 1.
    ready(&mut s, 4);
    assert_eq!(ready(&mut s, 5), [train(0, &[4, 5])]);
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[6, 7]));
    // Four groups of version 0 are left and two batches can contain them: group 6 has to wait.
    assert_eq!(ready(&mut s, 6), []);
    assert_eq!(ready(&mut s, 2), []);
    assert_eq!(ready(&mut s, 3), [train(1, &[2, 3])]);
    assert_eq!(s.handle(SchedulerEvent::BatchTrained).unwrap(), start(&[8, 9]));
    assert_eq!(ready(&mut s, 7), []);
    assert_eq!(ready(&mut s, 1), []);
    assert_eq!(ready(&mut s, 0), [train(2, &[1, 0])]);
    // Without waiting they would have been too old.
    let mut s = begun(SchedulerSettings { stragglers: Stragglers::Drop, ..settings });
    ready(&mut s, 4);
    ready(&mut s, 5);
    s.handle(SchedulerEvent::BatchTrained).unwrap();
    ready(&mut s, 6);
    assert_eq!(ready(&mut s, 2), [train(1, &[6, 2])]);
}

#[test]
fn invalid_states_are_rejected() {
    let running = |ticket, started| OpenGroup {
        ticket: Ticket(ticket),
        status: GroupStatus::Running { started: PolicyVersion(started) },
    };
    let ready = |ticket, completion_index| OpenGroup {
        ticket: Ticket(ticket),
        status: GroupStatus::Ready { oldest: PolicyVersion(0), completion_index },
    };
    let good = SchedulerState {
        version: PolicyVersion(1),
        next_ticket: Ticket(9),
        completions: 5,
        open_groups: vec![running(3, 1), ready(4, 4)],
        in_flight: InFlightWork::Training(vec![Ticket(1), Ticket(2)]),
        ..SchedulerState::default()
    };
    assert!(Scheduler::resume(SYNCHRONOUS, good.clone()).is_ok());
    let open = |open_groups| SchedulerState { open_groups, ..good.clone() };
    let trains = |tickets: &[u64]| SchedulerState {
        in_flight: InFlightWork::Training(tickets.iter().map(|&t| Ticket(t)).collect()),
        ..good.clone()
    };
    let refused = [
        (open(vec![running(4, 1), running(3, 1)]), "not in ascending order"),
        (open(vec![running(3, 1), running(3, 1)]), "not in ascending order"),
        (open(vec![running(9, 1)]), "not issued"),
        (open(vec![running(3, 2)]), "unknown policy version"),
        (open(vec![ready(3, 5)]), "completion order"),
        (open(vec![ready(3, 1), ready(4, 1)]), "completion order"),
        (open(vec![OpenGroup { ticket: Ticket(3), status: GroupStatus::Deferred }]), "is deferred"),
        (trains(&[1]), "1 groups instead of 2"),
        (trains(&[1, 1]), "invalid ticket"),
        (trains(&[1, 3]), "invalid ticket"),
        (trains(&[1, 9]), "invalid ticket"),
    ];
    for (state, why) in refused {
        let error = Scheduler::resume(SYNCHRONOUS, state).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn settings_come_from_the_schedule() {
    let schedule = ScheduleSettings { max_staleness: 2, pin_version: true, ..ScheduleSettings::default() };
    let expected = SchedulerSettings {
        groups_per_batch: 4,
        batches: 10,
        max_staleness: 2,
        pin_version: true,
        evaluate_every: 5,
        checkpoint_every: 3,
        ..SYNCHRONOUS
    };
    let new = |schedule: &ScheduleSettings| {
        SchedulerSettings::new(schedule, 4, 10, 5, 3, RandomKey::new(0, 0, Purpose::Reuse, 0))
    };
    assert_eq!(new(&schedule), expected);
    let synchronous = ScheduleSettings { max_staleness: 0, ..schedule };
    assert!(!new(&synchronous).pin_version, "pinning has no effect there");
}
