//! SCHED-10: reuse of trained groups. The driver checks the rule at every cut, in these runs and in all others.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rloom_core::{PolicyVersion, Purpose, RandomKey, Ticket};
use rloom_sched::{
    InFlightWork, ReusableGroup, ReuseRule, ReuseSettings, ReuseState, ReusedGroup, ScheduleSettings,
    Scheduler, SchedulerCommand, SchedulerEvent, SchedulerSettings, SchedulerState, Stragglers,
};

use crate::driver::{SimulatedDriver, resumed};
use crate::{schedule, settings};

fn rule(groups: u64, max_age: u64, max_uses: u64) -> ReuseRule {
    ReuseRule { groups, max_age, max_uses, draws: RandomKey::new(7, 0, Purpose::Reuse, 0) }
}

/// Commands without the reused groups.
fn without_reuse(
    log: &[(SchedulerEvent, Vec<SchedulerCommand>)],
) -> Vec<(SchedulerEvent, Vec<SchedulerCommand>)> {
    let plain = |command: &SchedulerCommand| match command.clone() {
        SchedulerCommand::TrainBatch { batch, tickets, .. } => {
            SchedulerCommand::TrainBatch { batch, tickets, reused: Vec::new() }
        }
        other => other,
    };
    log.iter().map(|(event, commands)| (*event, commands.iter().map(plain).collect())).collect()
}

/// All reuses of a run, with the batches that contain them.
fn reuses(driver: &SimulatedDriver) -> Vec<(u64, ReusedGroup)> {
    driver.log.iter().flat_map(|(_, commands)| reuses_of(commands)).collect()
}

fn reuses_of(commands: &[SchedulerCommand]) -> Vec<(u64, ReusedGroup)> {
    let of = |command: &SchedulerCommand| match command {
        SchedulerCommand::TrainBatch { batch, reused, .. } => {
            reused.iter().map(|reused| (*batch, *reused)).collect()
        }
        _ => Vec::new(),
    };
    commands.iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Without the reused groups the commands are those of a scheduler without reuse, and each (ticket, number of the use)
    /// occurs in one batch.
    #[test]
    fn reuse_changes_nothing_else(settings in settings(), schedule in schedule(), rule in crate::reuse()) {
        let mut plain = SimulatedDriver::new(SchedulerSettings { reuse: None, ..settings });
        plain.finish(&schedule);
        let mut driver = SimulatedDriver::new(SchedulerSettings { reuse: rule, ..settings });
        driver.finish(&schedule);
        prop_assert_eq!(&without_reuse(&driver.log), &plain.log);
        prop_assert_eq!(&driver.ends, &plain.ends);
        let all = reuses(&driver);
        let distinct: BTreeSet<ReusedGroup> = all.iter().map(|(_, reused)| *reused).collect();
        prop_assert_eq!(distinct.len(), all.len());
        let mut counted: BTreeMap<Ticket, u64> = BTreeMap::new();
        for (_, reused) in &all {
            *counted.entry(reused.ticket).or_default() += 1;
        }
        prop_assert_eq!(counted, driver.reuses.clone());
    }

    /// If the batch in flight is lost, its reuses are undone; the batch that is cut in its place draws the same groups.
    #[test]
    fn a_lost_batch_returns_its_reuses(settings in settings(), schedule in schedule(), at in 0usize..80) {
        let (stragglers, reuse) = (Stragglers::Drop, Some(rule(2, 3, 2)));
        let settings = SchedulerSettings { pin_version: false, stragglers, reuse, ..settings };
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        let mut state = driver.scheduler.state();
        let before = state.reuse.clone();
        state.restart_batch();
        prop_assert_eq!(&state.reuse.drawn, &[]);
        if matches!(driver.scheduler.state().in_flight, InFlightWork::Training(_)) {
            for reused in &before.drawn {
                prop_assert_eq!(state.reuse.groups[&reused.ticket].uses, reused.reuse - 1);
            }
            let (scheduler, at_once) = resumed(settings, &state);
            driver.adopt(scheduler, false);
            driver.finish(&schedule);
            let all = [reuses_of(&at_once), reuses(&driver)].concat().into_iter();
            let again = all.filter(|(batch, _)| *batch == state.version.0);
            let again: Vec<ReusedGroup> = again.map(|(_, reused)| reused).collect();
            // Cut twice: before the loss and after it.
            prop_assert_eq!(again, [before.drawn.clone(), before.drawn].concat());
        }
    }
}

#[test]
fn a_share_counts_groups_of_the_whole_batch() {
    for (share, new, reused) in
        [(0.0, 8, 0), (0.2, 8, 2), (0.25, 8, 2), (0.25, 9, 3), (0.5, 8, 8), (1.0 / 3.0, 8, 4), (0.1, 8, 0)]
    {
        let settings = ReuseSettings { share, ..ReuseSettings::default() };
        assert_eq!(settings.groups(new), reused, "{share} of {new}");
    }
    let invalid = [
        ("share", ReuseSettings { share: 0.6, ..ReuseSettings::default() }),
        ("share", ReuseSettings { share: f64::NAN, ..ReuseSettings::default() }),
        ("max_age", ReuseSettings { max_age: 0, ..ReuseSettings::default() }),
        ("max_uses", ReuseSettings { max_uses: 0, ..ReuseSettings::default() }),
    ];
    for (key, settings) in invalid {
        assert_eq!(settings.validate().unwrap_err().key, key);
    }
    assert!(ReuseSettings::default().validate().is_ok());
}

#[test]
fn the_rule_comes_from_the_schedule() {
    let draws = RandomKey::new(7, 0, Purpose::Reuse, 0);
    let of = |share| {
        let reuse = Some(ReuseSettings { share, max_age: 3, max_uses: 2 });
        let schedule = ScheduleSettings { max_staleness: 1, reuse, ..ScheduleSettings::default() };
        (SchedulerSettings::new(&schedule, 8, 10, 0, 0, draws).reuse, schedule.max_trained_age())
    };
    assert_eq!(of(0.2), (Some(rule(2, 3, 2)), 3));
    assert_eq!(of(0.0), (None, 1));
}

/// Batches of other seeds draw other groups, and each batch draws from its own stream.
#[test]
fn draws_depend_on_seed_and_batch() {
    let drawn = |seed| {
        let draws = RandomKey::new(seed, 0, Purpose::Reuse, 0);
        let reuse = Some(ReuseRule { draws, ..rule(2, 100, 100) });
        let settings = SchedulerSettings {
            groups_per_batch: 4,
            batches: 30,
            reuse,
            ..SchedulerSettings::new(&ScheduleSettings::default(), 4, 30, 0, 0, draws)
        };
        let mut driver = SimulatedDriver::new(settings);
        driver.finish(&crate::driver::Schedule { steps: Vec::new(), rejects: (0, 0), slow_every: 0 });
        reuses(&driver)
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let places: BTreeSet<u64> = drawn(1).iter().skip(20).map(|(_, reused)| reused.ticket.0).collect();
    assert!(places.len() > 10, "{places:?}");
}

#[test]
fn contradictory_states_are_rejected() {
    let draws = RandomKey::new(7, 0, Purpose::Reuse, 0);
    let settings = SchedulerSettings {
        reuse: Some(rule(1, 4, 2)),
        ..SchedulerSettings::new(&ScheduleSettings::default(), 1, 9, 0, 0, draws)
    };
    let group = |batch, uses| ReusableGroup { oldest: PolicyVersion(batch), batch, uses };
    let state = |groups: &[(u64, ReusableGroup)], drawn: &[(u64, u64)]| SchedulerState {
        version: PolicyVersion(2),
        next_ticket: Ticket(3),
        completions: 3,
        in_flight: InFlightWork::Training(vec![Ticket(2)]),
        reuse: ReuseState {
            groups: groups.iter().map(|(ticket, group)| (Ticket(*ticket), *group)).collect(),
            drawn: drawn.iter().map(|&(t, reuse)| ReusedGroup { ticket: Ticket(t), reuse }).collect(),
        },
        ..SchedulerState::default()
    };
    let good = state(&[(0, group(0, 1)), (1, group(1, 0)), (2, group(2, 0))], &[(0, 1)]);
    assert!(Scheduler::resume(settings, good.clone()).is_ok());
    let refused = [
        state(&[(0, group(0, 0))], &[(0, 1)]),
        state(&[(0, group(0, 1))], &[(1, 1)]),
        state(&[(0, group(0, 1))], &[(0, 1), (0, 1)]),
        state(&[(3, group(0, 0))], &[]),
        state(&[(1, group(2, 0))], &[]),
        state(&[(2, group(1, 0))], &[]),
        state(&[(0, group(3, 0))], &[]),
        state(&[(2, group(2, 1))], &[(2, 1)]),
        SchedulerState { in_flight: InFlightWork::Nothing, ..good },
    ];
    for state in refused {
        let error = Scheduler::resume(settings, state.clone()).unwrap_err().to_string();
        assert!(error.contains("reuse are inconsistent"), "{error}: {state:?}");
    }
}
