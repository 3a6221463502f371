//! Runs that crash, are stopped, and resume.

use proptest::prelude::*;
use rloom_core::Ticket;
use rloom_sched::{CutOrder, GroupStatus, SchedulerCommand, SchedulerEvent, SchedulerSettings, Stragglers};

use crate::driver::{SimulatedDriver, resumed};
use crate::{lossless_schedule, schedule, settings};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// After a crash at any event the last checkpoint and the log since then give the same commands, and the run ends
    /// correctly.
    #[test]
    fn crashes_do_not_change_the_run(
        settings in settings(),
        schedule in schedule(),
        kills in prop::collection::btree_set(0usize..150, 1..5),
    ) {
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished {
            prop_assert!(driver.step(&schedule), "deadlock: {:?}", driver.scheduler);
            if kills.contains(&driver.log.len())
                && let Some((from, state)) = driver.saved.last().cloned()
            {
                driver.restart(from, &state);
            }
        }
        driver.check_ends();
    }

    /// A state taken after any event is complete, not only a checkpointed one.
    #[test]
    fn every_state_is_complete(settings in settings(), schedule in schedule(), at in 0usize..60, more in 0usize..60) {
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        let (from, state) = (driver.log.len(), driver.scheduler.state());
        while !driver.finished && driver.log.len() < at + more {
            driver.step(&schedule);
        }
        if !driver.finished {
            driver.restart(from, &state);
        }
        driver.finish(&schedule);
        driver.check_ends();
    }

    /// Groups whose content was lost are generated again.
    #[test]
    fn lost_groups_are_regenerated(settings in settings(), schedule in schedule(), at in 0usize..60, lost in any::<u64>()) {
        let settings = SchedulerSettings { pin_version: false, ..settings };
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        let mut state = driver.scheduler.state();
        for group in state.open_groups.clone() {
            let ready = matches!(group.status, GroupStatus::Ready { .. });
            if lost >> (group.ticket.0 % 64) & 1 == 1 {
                prop_assert_eq!(state.restart_group(group.ticket), ready);
            }
        }
        prop_assert!(!state.restart_group(Ticket(u64::MAX)));
        let (scheduler, more) = resumed(settings, &state);
        driver.adopt(scheduler, more.contains(&SchedulerCommand::Finish));
        driver.finish(&schedule);
        driver.check_ends();
    }

    /// A stop request finishes at most one more batch, saves and ends; the next attempt continues with the open groups.
    #[test]
    fn a_stop_ends_within_one_batch_and_loses_nothing(settings in settings(), schedule in schedule(), at in 0usize..60) {
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        let trained = driver.batches.len();
        let counts = driver.scheduler.counts();
        let busy = counts.in_batch + counts.running + counts.ready > 0;
        driver.send(SchedulerEvent::StopRequested);
        driver.finish(&schedule);
        prop_assert!(driver.batches.len() <= trained + usize::from(busy));
        let version = driver.batches.len() as u64;
        if version > 0 {
            prop_assert_eq!(driver.checkpoints.last(), Some(&version));
            let (from, state) = driver.saved.last().cloned().unwrap();
            prop_assert_eq!(state.version.0, version);
            driver.resume_after_stop(from, &state);
            driver.finish(&schedule);
            driver.check_ends();
            prop_assert_eq!(driver.batches.len() as u64, settings.batches);
        }
    }

    /// After a crash while stopping, a scheduler that replays the log without the stop request cuts the same batches.
    #[test]
    fn replay_does_not_need_the_stop_request(settings in settings(), schedule in schedule(), at in 0usize..40, more in 0usize..20) {
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        let (from, state) = (driver.log.len(), driver.scheduler.state());
        driver.send(SchedulerEvent::StopRequested);
        let saved = driver.saved.len();
        while !driver.finished && driver.log.len() < from + more {
            let before = driver.clone();
            driver.step(&schedule);
            if driver.saved.len() > saved {
                // From here on the next attempt starts from the new checkpoint.
                driver = before;
                break;
            }
        }
        if !driver.finished {
            driver.resume_after_stop(from, &state);
            driver.finish(&schedule);
            driver.check_ends();
        }
    }

    /// In ticket order a stopped and resumed run trains the same batches and evaluates the same versions as one that was
    /// not stopped.
    #[test]
    fn a_stop_resumes_to_the_same_batches(settings in settings(), schedule in lossless_schedule(), at in 0usize..60) {
        let settings = SchedulerSettings {
            cut_order: CutOrder::Ticket,
            oversample: 0,
            stragglers: Stragglers::Drop,
            ..settings
        };
        let mut whole = SimulatedDriver::new(settings);
        whole.finish(&schedule);

        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        driver.send(SchedulerEvent::StopRequested);
        driver.finish(&schedule);
        if let Some((from, state)) = driver.saved.last().cloned() {
            driver.resume_after_stop(from, &state);
            driver.finish(&schedule);
            prop_assert_eq!(&driver.batches, &whole.batches);
            prop_assert_eq!(&driver.evaluations, &whole.evaluations);
        }
    }

    /// If the checkpoint of a stop is damaged, an earlier state and the log, including the stop, lead to the same state.
    #[test]
    fn replay_from_an_older_state_reaches_the_state_of_a_stop(
        settings in settings(),
        schedule in schedule(),
        lengths in (0usize..40, 0usize..20),
    ) {
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < lengths.0 {
            driver.step(&schedule);
        }
        let (from, state) = (driver.log.len(), driver.scheduler.state());
        while !driver.finished && driver.log.len() < from + lengths.1 {
            driver.step(&schedule);
        }
        driver.send(SchedulerEvent::StopRequested);
        driver.finish(&schedule);
        if let Some((until, saved)) = driver.saved.last().filter(|(until, _)| *until > from) {
            let (mut scheduler, _) = resumed(settings, &state);
            for (event, commands) in &driver.log[from..*until] {
                prop_assert_eq!(&scheduler.handle(*event).unwrap(), commands);
            }
            prop_assert_eq!(&scheduler.state(), saved);
        }
    }

    /// Beyond the checkpoint of a stop the log continues with the events of the next attempt: replaying all of it and
    /// withdrawing the request where the attempt ended gives the state from which the next attempt started.
    #[test]
    fn withdrawing_a_stop_equals_a_resume(settings in settings(), schedule in schedule(), at in 0usize..60) {
        let mut driver = SimulatedDriver::new(settings);
        while !driver.finished && driver.log.len() < at {
            driver.step(&schedule);
        }
        driver.send(SchedulerEvent::StopRequested);
        let stopped = driver.log.len();
        driver.finish(&schedule);
        if let Some((until, saved)) = driver.saved.last().filter(|(until, _)| *until >= stopped).cloned() {
            let (mut next, _) = resumed(settings, &saved);
            for (event, _) in &driver.log[until..] {
                next.handle(*event).unwrap();
            }
            driver.scheduler.handle(SchedulerEvent::StopWithdrawn).unwrap();
            prop_assert_eq!(driver.scheduler.state(), next.state());
        }
    }
}
