//! Whole runs: every rule after every event, and what they come to.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rloom_core::Ticket;
use rloom_sched::{CutOrder, End, Event, SchedulerSettings, Stragglers};

use crate::reference::Reference;
use crate::world::World;
use crate::{gentle, put_off, schedule, settings};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Every world that lets groups through in the end finishes, with every rule kept.
    #[test]
    fn random_worlds_finish(settings in settings(), schedule in schedule()) {
        let mut world = World::new(settings);
        world.finish(&schedule);
        world.check_ends();
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
        let due = |every: u64| (1..settings.batches).filter(move |v| every > 0 && v % every == 0);
        prop_assert!(due(settings.evaluate_every).all(|v| world.evaluations.contains(&v)));
        prop_assert!(due(settings.checkpoint_every).all(|v| world.checkpoints.contains(&v)));
        prop_assert!(world.scheduler.state().alive.is_empty());
    }

    /// Where groups come in ticket order and none is lost, a batch is a run of tickets, whatever the timing.
    #[test]
    fn batches_in_ticket_order_do_not_depend_on_timing(settings in settings(), schedule in gentle()) {
        let settings = SchedulerSettings {
            cut_order: CutOrder::Ticket,
            stragglers: Stragglers::Drop,
            oversample: 0,
            ..settings
        };
        let mut world = World::new(settings);
        world.finish(&schedule);
        let tickets: Vec<u64> = world.batches.iter().flatten().map(|t| t.0).collect();
        prop_assert!(tickets.into_iter().eq(0..settings.batches * settings.batch_groups));
    }

    /// A group that was put off is trained with others that were, and nothing is left behind but what no batch is made of.
    #[test]
    fn those_put_off_are_trained(settings in settings(), schedule in gentle()) {
        let settings = put_off(settings);
        let mut world = World::new(settings);
        world.finish(&schedule);
        prop_assert!(world.ends.values().all(|end| matches!(end, End::Trained | End::Surplus)));
        let surplus = world.ends.values().filter(|end| **end == End::Surplus).count() as u64;
        prop_assert!(surplus < settings.batch_groups + settings.oversample);
    }

    /// Synchronous training, and training in ticket order without pauses, is what the plain rules say, command for command.
    #[test]
    fn the_same_as_the_plain_rules(
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
        let mut world = World::new(settings);
        while !world.finished {
            if world.log.len() > stop_after {
                world.tell(Event::StopRequested);
                break;
            }
            prop_assert!(world.happen(&schedule));
        }
        world.finish(&schedule);
        let mut reference = Reference::new(settings);
        for (event, commands) in &world.log {
            prop_assert_eq!(&reference.handle(*event), commands, "{:?}", event);
        }
    }
}
