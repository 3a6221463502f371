//! Whole runs: every rule is checked after every event, and the outcome at the end.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rloom_core::Ticket;
use rloom_sched::{CutOrder, End, SchedulerEvent, SchedulerSettings, Stragglers};

use crate::driver::SimulatedDriver;
use crate::reference::Reference;
use crate::{deferring, lossless_schedule, schedule, settings, waiting};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Every run whose groups eventually succeed finishes without violating a rule.
    #[test]
    fn random_runs_finish(settings in settings(), schedule in schedule()) {
        let mut driver = SimulatedDriver::new(settings);
        driver.finish(&schedule);
        driver.check_ends();
        prop_assert_eq!(driver.batches.len() as u64, settings.batches);
        let trained: BTreeSet<Ticket> = driver.batches.iter().flatten().copied().collect();
        prop_assert_eq!(trained.len() as u64, settings.batches * settings.groups_per_batch);
        if settings.batches > 0 {
            prop_assert_eq!(driver.checkpoints.last(), Some(&settings.batches));
        }
        if settings.evaluate_every > 0 {
            prop_assert_eq!(driver.evaluations.first(), Some(&0));
            prop_assert_eq!(driver.evaluations.last(), Some(&settings.batches));
        }
        let due = |every: u64| (1..settings.batches).filter(move |v| every > 0 && v % every == 0);
        prop_assert!(due(settings.evaluate_every).all(|v| driver.evaluations.contains(&v)));
        prop_assert!(due(settings.checkpoint_every).all(|v| driver.checkpoints.contains(&v)));
        prop_assert!(driver.scheduler.state().open_groups.is_empty());
    }

    /// In ticket order without lost groups, batches are consecutive tickets regardless of timing.
    #[test]
    fn batches_in_ticket_order_do_not_depend_on_timing(settings in settings(), schedule in lossless_schedule()) {
        let settings = SchedulerSettings {
            cut_order: CutOrder::Ticket,
            stragglers: Stragglers::Drop,
            oversample: 0,
            ..settings
        };
        let mut driver = SimulatedDriver::new(settings);
        driver.finish(&schedule);
        let tickets: Vec<u64> = driver.batches.iter().flatten().map(|t| t.0).collect();
        prop_assert!(tickets.into_iter().eq(0..settings.batches * settings.groups_per_batch));
    }

    /// Deferred groups are trained together; only a remainder too small for a batch is left.
    #[test]
    fn deferred_groups_are_trained(settings in settings(), schedule in lossless_schedule()) {
        let settings = deferring(settings);
        let mut driver = SimulatedDriver::new(settings);
        driver.finish(&schedule);
        prop_assert!(driver.ends.values().all(|end| matches!(end, End::Trained | End::Surplus)));
        let surplus = driver.ends.values().filter(|end| **end == End::Surplus).count() as u64;
        prop_assert!(surplus < settings.groups_per_batch + settings.oversample);
    }

    /// A batch that waits for groups which are due leaves none behind: every group is trained, however slow.
    #[test]
    fn groups_that_are_waited_for_are_trained(settings in settings(), schedule in lossless_schedule()) {
        let settings = waiting(settings);
        let mut driver = SimulatedDriver::new(settings);
        driver.finish(&schedule);
        prop_assert!(driver.ends.values().all(|end| *end == End::Trained), "{:?}", driver.ends);
    }

    /// Synchronous training, and training in ticket order without pauses, match the reference command for command.
    #[test]
    fn matches_the_reference(
        settings in settings(),
        schedule in schedule(),
        synchronous in any::<bool>(),
        stop_after in prop_oneof![Just(usize::MAX), 0usize..60],
    ) {
        let settings = if synchronous {
            SchedulerSettings { max_staleness: 0, oversample: 0, stragglers: Stragglers::Drop, ..settings }
        } else {
            SchedulerSettings {
                max_staleness: settings.max_staleness,
                cut_order: CutOrder::Ticket,
                oversample: 0,
                stragglers: Stragglers::Drop,
                evaluate_every: 0,
                checkpoint_every: 0,
                ..settings
            }
        };
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished {
            if driver.log.len() > stop_after {
                driver.send(SchedulerEvent::StopRequested);
                break;
            }
            prop_assert!(driver.step(&schedule));
        }
        driver.finish(&schedule);
        let mut reference = Reference::new(settings);
        for (event, commands) in &driver.log {
            prop_assert_eq!(&reference.handle(*event), commands, "{:?}", event);
        }
    }
}
