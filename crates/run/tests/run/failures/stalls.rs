//! Reports of stalled runs.

use rloom_core::Ticket;
use rloom_run::{RunError, StageError, StopFlag};

use super::faults::{EVALUATION, Fault, Faults, Gate, LONG, RL};
use super::trial::Trial;

const ONE_LANE: &str = "rollout.lanes=1";
const IDLE: &str =
    "rollout lane #: idle for # s, policy version #, # running, # waiting, # queued, # tokens sampled";

/// Returns the report of a run that stalls, with times and counts replaced by `#`.
fn stall(trial: &Trial, faults: Faults) -> String {
    let mut impatient = trial.config.clone();
    impatient.run.stall_seconds = 4;
    let error = Trial::attempt_with(impatient, faults, StopFlag::default(), None).unwrap_err();
    let RunError::Stage(StageError::Stalled { stage, report, checkpoint, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(stage, "rl");
    assert!(!checkpoint.is_empty());
    let mut shown = String::new();
    for character in report.chars() {
        match character {
            '0'..='9' | '.' if shown.ends_with('#') => {}
            '0'..='9' => shown.push('#'),
            other => shown.push(other),
        }
    }
    shown
}

#[test]
fn a_stall_names_the_environment_that_a_group_waits_for() {
    let trial = Trial::new(&[ONE_LANE]);
    let task = trial.task_of(Ticket(7));
    assert_eq!(
        stall(&trial, Faults::environment(RL, &Fault::Hang, task, LONG)),
        format!(
            "the trainer waits for a batch of # groups: # ready, # in flight\n  oldest group: #, for # s, scored \
             samples: none{}\n  {IDLE}",
            "\n    sample # has waited # s for the `faulty` environment".repeat(4)
        )
    );
    trial.run(Faults::none()).unwrap();
}

#[test]
fn a_stall_names_the_reward_that_a_sample_waits_for() {
    let trial = Trial::new(&[ONE_LANE]);
    let faults = Faults { reward_timeout: LONG, ..Faults::reward(&Fault::Hang, &[7]) };
    assert_eq!(
        stall(&trial, faults),
        format!(
            "the trainer waits for a batch of # groups: # ready, # in flight\n  oldest group: #, for # s, scored \
             samples: #, #, #\n    sample # has waited # s for reward `length`\n  {IDLE}"
        )
    );
}

#[test]
fn a_stall_says_that_the_driver_waits_for_the_trainer() {
    let trial = Trial::new(&[ONE_LANE]);
    let gate = Gate::default();
    let closed = gate.clone();
    assert_eq!(
        stall(&trial, Faults::before_second_batch(move || closed.wait())),
        "the driver waits for the trainer: # of # optimiser steps of the batch\n  rollout lane #: without weights for # s, # \
         running, # waiting, # queued, # tokens sampled"
    );
    gate.open();
    trial.run(Faults::none()).unwrap();
}

#[test]
fn a_stall_names_the_held_out_task_that_an_evaluation_waits_for() {
    // Without evaluations the stage before cannot stall.
    let trial = Trial::new(&[ONE_LANE, "stage.warmup.eval_every=0"]);
    let report = stall(&trial, Faults::environment(EVALUATION, &Fault::Hang, 3, LONG));
    let start = "the driver waits for the evaluation: # of # completions\n  held-out task # has waited # s for the `faulty` \
                 environment\n";
    assert!(report.starts_with(start), "{report}");
}
