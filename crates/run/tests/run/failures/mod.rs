//! Failures of rewards, environments, engines and the training thread: the run ends as configured, within the timeouts;
//! its error says what failed where; and it can be resumed from what is saved.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod engines;
mod faults;
mod losses;
mod stalls;
mod stops;
mod trial;

use std::collections::BTreeSet;

use rloom_core::Ticket;
use rloom_reward::OnError;
use rloom_run::{RunError, StageError};
use rloom_telemetry::{Event, GroupEnd};

use engines::{EngineFaults, RequestFault};
use faults::{Fault, Faults, RL, SHORT};
use trial::Trial;

/// Ticket, step and reason of a failed group.
fn group_failure(error: &RunError) -> (u64, u64, String) {
    let RunError::Stage(StageError::Group { stage, ticket, step, cause, checkpoint, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(stage, "rl");
    assert!(checkpoint.contains("checkpoints/") || checkpoint.starts_with("none"), "{checkpoint}");
    (*ticket, *step, cause.message.clone())
}

const REWARDS: [(Fault, &str); 4] = [
    (Fault::Hang, "reward `length` exceeded the timeout of 4 s on sample 8/1"),
    (Fault::Panic, "reward `length` panicked on sample 8/1: this cannot be"),
    (Fault::Error, "reward `length` failed on sample 8/1: task"),
    (Fault::NotFinite, "reward `length` returned NaN on sample 8/1"),
];

#[test]
fn a_failing_reward_ends_the_run_which_resumes_to_the_same_result() {
    let undisturbed = Trial::new(&[]);
    undisturbed.run(Faults::none()).unwrap();
    for (fault, message) in REWARDS {
        let trial = Trial::new(&[]);
        let error = trial.run(Faults::reward(&fault, &[8])).unwrap_err();
        let (ticket, step, reason) = group_failure(&error);
        assert_eq!((ticket, step), (8, 2), "{error}");
        assert!(reason.starts_with(message), "{reason}");
        trial.run(Faults::none()).unwrap();
        assert!(trial.result() == undisturbed.result(), "after {fault:?}");
    }
}

#[test]
fn completions_whose_reward_fails_can_be_left_out() {
    for (fault, _) in REWARDS {
        let trial = Trial::new(&["schedule.max_staleness=1"]);
        trial.run(Faults { on_error: OnError::Drop, ..Faults::reward(&fault, &[3, 8]) }).unwrap();
        let failures = trial.events().filter_map(|event| match event {
            Event::Step { metrics } => metrics.get("reward_failures/length").copied(),
            _ => None,
        });
        assert_eq!(failures.fold(0.0, f64::max), 2.0, "{fault:?}");
    }
}

const ENVIRONMENTS: [(Fault, &str); 3] = [
    (Fault::Hang, "the `faulty` environment did not answer within 4 s"),
    (Fault::Error, "environment faulty, task"),
    (Fault::Panic, "its task panicked: this cannot be"),
];

/// An environment that fails at the task of group 7.
fn environment(trial: &Trial, fault: &Fault) -> Faults {
    Faults::environment(RL, fault, trial.task_of(Ticket(7)), SHORT)
}

#[test]
fn a_failing_environment_ends_the_run() {
    for staleness in ["schedule.max_staleness=0", "schedule.max_staleness=2"] {
        for (fault, message) in ENVIRONMENTS {
            let trial = Trial::new(&[staleness]);
            let error = trial.run(environment(&trial, &fault)).unwrap_err();
            let (ticket, _, reason) = group_failure(&error);
            assert_eq!(ticket, 7, "{error}");
            assert!(reason.starts_with(message), "{reason}");
            trial.run(Faults::none()).unwrap();
        }
    }
}

#[test]
fn failed_groups_are_replaced_up_to_the_limit() {
    for (fault, message) in ENVIRONMENTS {
        for staleness in ["schedule.max_staleness=0", "schedule.max_staleness=2"] {
            let trial = Trial::new(&["schedule.max_failures=1", staleness]);
            trial.run(environment(&trial, &fault)).unwrap();
            let failed: BTreeSet<u64> = trial
                .events()
                .filter_map(|event| match event {
                    Event::GroupEnded { ticket, end: GroupEnd::Failed, reason } => {
                        assert!(reason.unwrap().starts_with(message));
                        Some(ticket)
                    }
                    _ => None,
                })
                .collect();
            assert!(failed.contains(&7), "{failed:?}");
        }
    }
}

/// Tickets of more groups than may fail.
const FROM_SIX: [u64; 40] = {
    let mut tickets = [6; 40];
    let mut at = 0;
    while at < tickets.len() {
        tickets[at] += at as u64;
        at += 1;
    }
    tickets
};

#[test]
fn one_failure_too_many_ends_the_run_which_can_be_resumed() {
    // At staleness 2 groups of three batches are generated at a time.
    for (staleness, limit) in [("schedule.max_staleness=0", 2), ("schedule.max_staleness=2", 6)] {
        let trial = Trial::new(&["schedule.max_failures=2", staleness]);
        for _ in 0..2 {
            let error = trial.run(Faults::reward(&Fault::Error, &FROM_SIX)).unwrap_err();
            let RunError::Stage(StageError::TooManyFailures { failures, last, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!(*failures, limit + 1);
            assert!(last.starts_with("group ") && last.contains("reward `length` failed"), "{error}");
        }
        trial.run(Faults::none()).unwrap();
    }
}

fn requests(fault: RequestFault, tickets: &'static [u64]) -> EngineFaults {
    EngineFaults { requests: Some((fault, tickets)), ..EngineFaults::default() }
}

#[test]
fn requests_of_a_restarted_worker_are_submitted_again_with_the_same_result() {
    let undisturbed = Trial::new(&[]);
    undisturbed.run(Faults::none()).unwrap();
    let trial = Trial::new(&["rollout.lanes=1"]);
    let faults = requests(RequestFault::WorkerRestarted, &[2, 9]);
    trial.run(Faults::engines(faults.clone())).unwrap();
    assert_eq!(faults.lost.lock().unwrap().len(), 8, "every sample of two groups");
    assert!(trial.result() == undisturbed.result(), "lost completions changed the result");
}

#[test]
fn a_request_that_always_loses_its_worker_fails() {
    let trial = Trial::new(&[]);
    let faults = requests(RequestFault::WorkerRestartedAgainAndAgain, &[8]);
    let (ticket, step, reason) = group_failure(&trial.run(Faults::engines(faults)).unwrap_err());
    assert_eq!((ticket, step), (8, 2));
    assert!(reason.contains("rollout lane 0 failed and was restarted: panicked: this cannot be"), "{reason}");
    trial.run(Faults::none()).unwrap();
}

#[test]
fn a_failed_rollout_engine_ends_the_run() {
    for replace in [&[][..], &["schedule.max_failures=16"]] {
        let overrides =
            [&["rollout.lanes=1", "schedule.max_staleness=2", "eval.every=100"], replace].concat();
        let trial = Trial::new(&overrides);
        let faults = requests(RequestFault::EngineFailed, &[9]);
        let error = trial.run(Faults::engines(faults)).unwrap_err().to_string();
        assert!(error.contains("the rollout engine failed: lane 0: panicked: this cannot be"), "{error}");
        assert!(error.contains("stage `rl`, step") && error.contains("last valid checkpoint"), "{error}");
        trial.run(Faults::none()).unwrap();
    }
}

#[test]
fn a_training_thread_that_panics_ends_the_run_with_its_message() {
    for staleness in ["schedule.max_staleness=0", "schedule.max_staleness=2"] {
        let trial = Trial::new(&[staleness]);
        let faults = Faults::before_second_batch(|| panic!("this cannot be"));
        let error = trial.run(faults).unwrap_err().to_string();
        let start =
            "stage `rl`, step 2: the training thread panicked: this cannot be\nlast valid checkpoint: ";
        assert!(error.starts_with(start), "{error}");
        trial.run(Faults::none()).unwrap();
    }
}
