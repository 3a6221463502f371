//! Stops at once while a worker hangs.

use std::collections::BTreeMap;

use rloom_run::{RunError, StageError, StopFlag};
use rloom_telemetry::Event;

use super::faults::{Callback, Fault, Faults, Gate, LONG};
use super::trial::{Seen, Trial};

#[test]
fn a_second_stop_request_waits_for_no_worker() {
    for (worker, staleness) in
        [("trainer", 2), ("trainer", 0), ("reward", 2), ("reward", 0), ("load", 2), ("load", 0)]
    {
        let trial = Trial::new(&[&format!("schedule.max_staleness={staleness}")]);
        let (stop, gate) = (StopFlag::default(), Gate::default());
        let (flag, closed) = (stop.clone(), gate.clone());
        let hang = move || {
            flag.request();
            flag.request();
            closed.wait();
        };
        let faults = match worker {
            "trainer" => Faults::before_second_batch(hang),
            // The driver itself waits for the engine.
            "load" => {
                let flag = stop.clone();
                Faults::while_loading(move || {
                    flag.request();
                    flag.request();
                })
            }
            _ => Faults::reward(&Fault::Call(Callback::new(move |()| hang())), &[8]),
        };
        let error = trial.attempt(faults, stop, None).unwrap_err();
        assert!(matches!(error, RunError::Stage(StageError::StoppedNow { .. })), "{worker}: {error}");
        gate.open();
        trial.run(Faults::none()).unwrap();
    }
}

/// Completions in the evaluations of a run by version and task. An evaluation that is repeated must be the same.
fn evaluated(trial: &Trial) -> BTreeMap<(u64, u64), String> {
    let mut found = BTreeMap::new();
    for line in trial.lines().into_iter().filter(|line| line.stage == "rl") {
        if let Event::EvaluationSample(sample) = line.event {
            let before = found.entry((line.step, sample.task)).or_insert_with(|| sample.completion.clone());
            assert_eq!(*before, sample.completion, "version {}", line.step);
        }
    }
    found
}

/// The groups in flight of a resumed run are pinned to older versions than the one that it evaluates.
#[test]
fn a_pinned_run_that_is_resumed_before_an_evaluation_evaluates_the_right_weights() {
    let overrides = [
        "stage.rl.steps=6",
        "schedule.max_staleness=2",
        "schedule.pin_version=true",
        "rollout.max_batch=1",
        "rollout.lanes=1",
        "eval.tasks=64",
        "eval.every=1",
        "stage.warmup.steps=60",
        "stage.rl.trainer.learning_rate=0.003",
        "sampling.max_new_tokens=12",
    ];
    let undisturbed = Trial::new(&overrides);
    undisturbed.run(Faults::none()).unwrap();
    let trial = Trial::new(&overrides);
    // A group of the fifth batch, which is pinned to version 2.
    let faults = Faults { reward_timeout: LONG, ..Faults::reward(&Fault::Hang, &[29]) };
    let stop = StopFlag::default();
    let (flag, mut trained) = (stop.clone(), false);
    let observer = Seen(Box::new(move |line| {
        trained |= line.stage == "rl" && line.step == 3 && matches!(line.event, Event::Step { .. });
        // The driver waits again: the evaluation of version 3 is requested.
        if trained && matches!(line.event, Event::Progress { .. }) {
            flag.request();
            flag.request();
        }
    }));
    let error = trial.attempt(faults, stop, Some(observer)).unwrap_err();
    assert!(matches!(error, RunError::Stage(StageError::StoppedNow { .. })), "{error}");
    assert!(evaluated(&trial).keys().all(|(version, _)| *version < 3));
    trial.run(Faults::none()).unwrap();
    let found = evaluated(&trial);
    let of = |version: u64| found.range((version, 0)..(version + 1, 0)).map(|(_, completion)| completion);
    assert!(of(3).next().is_some() && !of(2).eq(of(3)), "{found:?}");
    assert_eq!(found, evaluated(&undisturbed));
    assert!(trial.result() == undisturbed.result());
}
