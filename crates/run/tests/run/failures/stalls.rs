//! Reports of stalled runs.

use std::time::{Duration, Instant};

use rloom_core::Ticket;
use rloom_engine::{TrainProgress, TrainWork, Which};
use rloom_run::{RunError, StageError, StopFlag, Summary};

use super::faults::{EVALUATION, Fault, Faults, Gate, LONG, RL, SHORT};
use super::trial::Trial;

const ONE_LANE: &str = "rollout.lanes=1";
const IDLE: &str =
    "rollout lane #: idle for # s, policy version #, # running, # waiting, # queued, # tokens sampled";

/// Longest time without progress.
const LIMIT: Duration = SHORT;

/// Runs with the limit.
fn impatient(trial: &Trial, faults: Faults) -> Result<Summary, RunError> {
    let mut impatient = trial.config.clone();
    impatient.run.stall_seconds = LIMIT.as_secs();
    Trial::attempt_with(impatient, faults, StopFlag::default(), None)
}

/// Returns the report of a run that stalls.
fn stalled(trial: &Trial, faults: Faults) -> String {
    let error = impatient(trial, faults).unwrap_err();
    let RunError::Stage(StageError::Stalled { stage, report, checkpoint, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(stage, "rl");
    assert!(!checkpoint.is_empty());
    report.clone()
}

/// Returns the report of a run that stalls, with times and counts replaced by `#`.
fn stall(trial: &Trial, faults: Faults) -> String {
    let report = stalled(trial, faults);
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

/// Micro-batches of a few sequences each, with the reference scored as well.
const SMALL_MICRO_BATCHES: [&str; 3] =
    [ONE_LANE, "stage.rl.trainer.micro_batch_tokens=16", "stage.rl.algorithm.kl.coef=0.01"];

#[test]
fn a_stall_names_the_micro_batch_that_hangs() {
    let trial = Trial::new(&SMALL_MICRO_BATCHES);
    for (work, shown) in [
        (TrainWork::Score(Which::Reference), "scoring micro-batch 3 of # with the reference"),
        (TrainWork::Accumulate, "training micro-batch 3 of #"),
    ] {
        let gate = Gate::default();
        let closed = gate.clone();
        let hang = move |progress: TrainProgress| {
            if progress.work == work && progress.done == 2 {
                closed.wait();
            }
        };
        let error = stalled(&trial, Faults::in_second_batch(hang));
        let start = "the driver waits for the trainer: 0 of 1 optimiser steps of the batch, ";
        let total = error.rsplit_once("micro-batch 3 of ").unwrap().1.split(|c: char| !c.is_numeric()).next();
        let expected = format!("{start}{}\n", shown.replace('#', total.unwrap()));
        assert!(error.starts_with(&expected), "{error}");
        gate.open();
    }
    trial.run(Faults::none()).unwrap();
}

/// A step of ten micro-batches takes 6 s, but none of them 4 s.
#[test]
fn a_step_longer_than_the_limit_is_no_stall_while_its_micro_batches_are_computed() {
    for work in [TrainWork::Score(Which::Reference), TrainWork::Accumulate] {
        let trial = Trial::new(&SMALL_MICRO_BATCHES);
        let slow = move |progress: TrainProgress| {
            if progress.work == work && progress.done < 10 {
                std::thread::sleep(Duration::from_millis(600));
            }
        };
        let start = Instant::now();
        impatient(&trial, Faults::in_second_batch(slow)).unwrap();
        assert!(start.elapsed() > LIMIT, "the step takes longer than the limit");
    }
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
