//! Runs that die, are stopped, and go on.

use proptest::prelude::*;
use rloom_core::Ticket;
use rloom_sched::{Command, CutOrder, Event, Progress, SchedulerSettings, Stragglers};

use crate::world::{World, resumed};
use crate::{gentle, schedule, settings};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Killed at any events: the last checkpoint and the log since then give the same commands again, and the run ends
    /// as it should.
    #[test]
    fn kills_change_nothing(
        settings in settings(),
        schedule in schedule(),
        kills in prop::collection::btree_set(0usize..150, 1..5),
    ) {
        let mut world = World::new(settings);
        while !world.finished {
            prop_assert!(world.happen(&schedule), "deadlock: {:?}", world.scheduler);
            if kills.contains(&world.log.len())
                && let Some((from, state)) = world.saved.last().cloned()
            {
                world.restart(from, &state);
            }
        }
        world.check_ends();
    }

    /// A state taken after any event is complete, not only one that a checkpoint holds.
    #[test]
    fn every_state_is_complete(settings in settings(), schedule in schedule(), at in 0usize..60, more in 0usize..60) {
        let mut world = World::new(settings);
        while !world.finished && world.log.len() < at {
            world.happen(&schedule);
        }
        let (from, state) = (world.log.len(), world.scheduler.state());
        while !world.finished && world.log.len() < at + more {
            world.happen(&schedule);
        }
        if !world.finished {
            world.restart(from, &state);
        }
        world.finish(&schedule);
        world.check_ends();
    }

    /// Groups whose content was lost are generated again.
    #[test]
    fn what_was_lost_is_made_again(settings in settings(), schedule in schedule(), at in 0usize..60, lost in any::<u64>()) {
        let settings = SchedulerSettings { pin_version: false, ..settings };
        let mut world = World::new(settings);
        while !world.finished && world.log.len() < at {
            world.happen(&schedule);
        }
        let mut state = world.scheduler.state();
        for group in state.alive.clone() {
            let ready = matches!(group.progress, Progress::Ready { .. });
            if lost >> (group.ticket.0 % 64) & 1 == 1 {
                prop_assert_eq!(state.forget(group.ticket), ready);
            }
        }
        prop_assert!(!state.forget(Ticket(u64::MAX)));
        let (scheduler, more) = resumed(settings, &state);
        world.follow(scheduler, more.contains(&Command::Finish));
        world.finish(&schedule);
        world.check_ends();
    }

    /// A request to stop lets one batch end at most, saves, and ends; the next attempt goes on with what was alive.
    #[test]
    fn a_stop_ends_soon_and_loses_nothing(settings in settings(), schedule in schedule(), at in 0usize..60) {
        let mut world = World::new(settings);
        while !world.finished && world.log.len() < at {
            world.happen(&schedule);
        }
        let trained = world.batches.len();
        let counts = world.scheduler.counts();
        let busy = counts.in_batch + counts.running + counts.ready > 0;
        world.tell(Event::StopRequested);
        world.finish(&schedule);
        prop_assert!(world.batches.len() <= trained + usize::from(busy));
        let version = world.batches.len() as u64;
        if version > 0 {
            prop_assert_eq!(world.checkpoints.last(), Some(&version));
            let (from, state) = world.saved.last().cloned().unwrap();
            prop_assert_eq!(state.version.0, version);
            world.go_on(from, &state);
            world.finish(&schedule);
            world.check_ends();
            prop_assert_eq!(world.batches.len() as u64, settings.batches);
        }
    }

    /// Killed while it stops: the log is told again to a scheduler that knows of no stop, which cuts the same batches.
    #[test]
    fn a_stop_is_not_in_the_log(settings in settings(), schedule in schedule(), at in 0usize..40, more in 0usize..20) {
        let mut world = World::new(settings);
        while !world.finished && world.log.len() < at {
            world.happen(&schedule);
        }
        let (from, state) = (world.log.len(), world.scheduler.state());
        world.tell(Event::StopRequested);
        let saved = world.saved.len();
        while !world.finished && world.log.len() < from + more {
            let before = world.clone();
            world.happen(&schedule);
            if world.saved.len() > saved {
                // From here on the next attempt begins with what was saved.
                world = before;
                break;
            }
        }
        if !world.finished {
            world.go_on(from, &state);
            world.finish(&schedule);
            world.check_ends();
        }
    }

    /// In ticket order a run that was stopped trains the batches, and evaluates the versions, of one that was not.
    #[test]
    fn a_stop_resumes_to_the_same_batches(settings in settings(), schedule in gentle(), at in 0usize..60) {
        let settings = SchedulerSettings {
            cut_order: CutOrder::Ticket,
            oversample: 0,
            stragglers: Stragglers::Drop,
            ..settings
        };
        let mut whole = World::new(settings);
        whole.finish(&schedule);

        let mut world = World::new(settings);
        while !world.finished && world.log.len() < at {
            world.happen(&schedule);
        }
        world.tell(Event::StopRequested);
        world.finish(&schedule);
        if let Some((from, state)) = world.saved.last().cloned() {
            world.go_on(from, &state);
            world.finish(&schedule);
            prop_assert_eq!(&world.batches, &whole.batches);
            prop_assert_eq!(&world.evaluations, &whole.evaluations);
        }
    }

    /// The checkpoint of a stop turned out damaged: an earlier state and the log, with the stop in it, lead to the state
    /// that was in it.
    #[test]
    fn an_older_state_leads_to_that_of_a_stop(
        settings in settings(),
        schedule in schedule(),
        lengths in (0usize..40, 0usize..20),
    ) {
        let mut world = World::new(settings);
        while !world.finished && world.log.len() < lengths.0 {
            world.happen(&schedule);
        }
        let (from, state) = (world.log.len(), world.scheduler.state());
        while !world.finished && world.log.len() < from + lengths.1 {
            world.happen(&schedule);
        }
        world.tell(Event::StopRequested);
        world.finish(&schedule);
        if let Some((until, saved)) = world.saved.last().filter(|(until, _)| *until > from) {
            let (mut scheduler, _) = resumed(settings, &state);
            for (event, commands) in &world.log[from..*until] {
                prop_assert_eq!(&scheduler.handle(*event).unwrap(), commands);
            }
            prop_assert_eq!(&scheduler.state(), saved);
        }
    }

    /// Beyond the checkpoint of a stop the log goes on with what the next attempt recorded: whoever is told the whole of
    /// it withdraws the request at its end, and is where the next attempt began.
    #[test]
    fn a_stop_that_is_withdrawn_is_a_resume(settings in settings(), schedule in schedule(), at in 0usize..60) {
        let mut world = World::new(settings);
        while !world.finished && world.log.len() < at {
            world.happen(&schedule);
        }
        world.tell(Event::StopRequested);
        let stopped = world.log.len();
        world.finish(&schedule);
        if let Some((until, saved)) = world.saved.last().filter(|(until, _)| *until >= stopped).cloned() {
            let (mut next, _) = resumed(settings, &saved);
            for (event, _) in &world.log[until..] {
                next.handle(*event).unwrap();
            }
            world.scheduler.handle(Event::StopWithdrawn).unwrap();
            prop_assert_eq!(world.scheduler.state(), next.state());
        }
    }
}
