//! Trainers that are lost: the stage restarts from its last checkpoint in the same process, up to a limit.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rloom_core::PolicyVersion;
use rloom_run::{RunError, StageError};
use rloom_store::journal::{self, Record};
use rloom_telemetry::{Event, EventLine, Metrics, surviving};

use super::engines::{EngineFaults, Losses};
use super::faults::{Faults, RL};
use super::trial::Trial;

/// The trainer counts as one of several processes, which may be restarted.
const PROCESSES: &str = "trainer.backend=torch";
const PINNED: [&str; 3] =
    ["schedule.max_staleness=2", "schedule.pin_version=true", "stage.rl.rollout.max_batch=2"];

fn losses(calls: &[(&'static str, u64)]) -> Faults {
    Faults::engines(EngineFaults { losses: Losses::at(calls), ..EngineFaults::default() })
}

fn warnings(trial: &Trial) -> Vec<String> {
    let of_event = |event| match event {
        Event::Warning { message } => Some(message),
        _ => None,
    };
    trial.events().filter_map(of_event).collect()
}

/// Metrics of the steps that count, without durations.
fn steps(trial: &Trial) -> BTreeMap<u64, Metrics> {
    let mut steps = BTreeMap::new();
    let lines = trial.lines();
    for EventLine { global_step, event, .. } in surviving(&lines) {
        if let Event::Step { metrics } = event {
            let mut metrics = metrics.clone();
            let timed = ["time/", "tokens_per_second/", "overlap", "queue/", "rollout/"];
            metrics.retain(|name, _| !timed.iter().any(|timed| name.starts_with(timed)));
            assert!(steps.insert(*global_step, metrics).is_none(), "step {global_step} counts twice");
        }
    }
    steps
}

/// Failing calls of a trainer, each with the number of earlier calls, and the places of the restarts.
type Row = (&'static [(&'static str, u64)], &'static [&'static str]);

/// Version of the checkpoint, where there is one, from which a stage of 4 steps restarts after losses. It saves steps 2 and
/// 4, and evaluates steps 3 and 4.
const LOSSES: [Row; 11] = [
    (&[("start", 0), ("start", 0)], &["its start"; 2]),
    (&[("step", 3), ("start", 0)], &["rl-step-000002"; 2]),
    (&[("publish", 0)], &["its start"]),
    (&[("accumulate", 0)], &["its start"]),
    (&[("step", 1)], &["its start"]),
    (&[("save", 0)], &["its start"]),
    (&[("publish", 3)], &["rl-step-000002"]),
    (&[("step", 3), ("restore", 0), ("accumulate", 1)], &["rl-step-000002"; 3]),
    (&[("save", 1)], &["rl-step-000002"]),
    (&[("publish", 5)], &["rl-step-000004"]),
    (&[("step", 0), ("step", 3)], &["its start", "rl-step-000002"]),
];

#[test]
fn a_lost_trainer_is_replaced_with_the_same_result() {
    for schedule in [&[][..], &PINNED] {
        let overrides = [schedule, &[PROCESSES]].concat();
        let undisturbed = Trial::new(&overrides);
        undisturbed.run(Faults::none()).unwrap();
        for (calls, from) in LOSSES {
            let trial = Trial::new(&overrides);
            let faults = losses(calls);
            trial.run(faults.clone()).unwrap_or_else(|error| panic!("{calls:?}: {error}"));
            assert!(faults.engines.losses.are_over(), "{calls:?}");
            assert!(trial.result() == undisturbed.result(), "{calls:?}: other weights");
            if schedule.is_empty() {
                assert_eq!(steps(&trial), steps(&undisturbed), "{calls:?}");
            }
            let warnings = warnings(&trial);
            assert_eq!(warnings.len(), from.len(), "{warnings:?}");
            for (warning, from) in warnings.iter().zip(from) {
                assert!(
                    warning.starts_with("the trainer was lost ")
                        && warning.contains(
                            "rank 1 ended (signal: 9 (SIGKILL)) in phase `step` (its last output: last words)"
                        )
                        && warning.contains(&format!("stage `rl` continues from {from} ")),
                    "{calls:?}: {warning}"
                );
            }
            let lines = trial.lines();
            assert_eq!(lines.last().unwrap().attempt as usize, 1 + from.len());
            // Durations include the work before a restart.
            let seconds = |event: &Event| match event {
                Event::StageFinished { seconds, .. } | Event::RunFinished { seconds, .. } => Some(*seconds),
                _ => None,
            };
            let ends: Vec<f64> = lines.iter().filter_map(|line| seconds(&line.event)).collect();
            let (run, stages) = ends.split_last().unwrap();
            assert!(ends[0] > 0.0 && *run >= stages.iter().sum::<f64>(), "{ends:?}");
            // One for each stage: it stays while the trainer is replaced, unless the stage has ended.
            let ended = u64::from(calls[0] == ("publish", 5));
            assert_eq!(faults.rollouts.load(Ordering::Relaxed), 2 + ended, "{calls:?}");
        }
    }
}

#[test]
fn one_loss_too_many_ends_the_run_which_can_be_resumed() {
    let undisturbed = Trial::new(&[PROCESSES]);
    undisturbed.run(Faults::none()).unwrap();
    for (backend, restarts, calls) in [
        (PROCESSES, "trainer.restarts=0", &[("step", 3)][..]),
        (PROCESSES, "trainer.restarts=0", &[("save", 0)]),
        (PROCESSES, "trainer.restarts=1", &[("step", 3), ("step", 0)]),
        ("trainer.backend=embedded", "trainer.share_prompts=false", &[("step", 3)]),
    ] {
        let trial = Trial::new(&[backend, restarts]);
        let error = trial.run(losses(calls)).unwrap_err();
        assert!(
            matches!(&error, RunError::Stage(StageError::Worker { step: 3 | 4, .. })),
            "{backend}, {restarts}: {error}"
        );
        assert!(error.to_string().contains("last words\nlast valid checkpoint: "), "{error}");
        assert_eq!(warnings(&trial).len(), calls.len() - 1);
        trial.run(Faults::none()).unwrap();
        assert!(trial.result() == undisturbed.result(), "{backend}, {restarts}: other weights");
    }
}

/// A trainer that is killed as often as that while it starts ends the run, and one that refuses to start does so at once.
#[test]
fn a_trainer_that_does_not_start_ends_the_run() {
    for (restarts, calls) in
        [("trainer.restarts=1", &[("start", 0), ("start", 0)][..]), ("trainer.restarts=3", &[("refusal", 0)])]
    {
        let trial = Trial::new(&[PROCESSES, restarts]);
        let faults = losses(calls);
        let error = trial.run(faults.clone()).unwrap_err();
        assert!(matches!(&error, RunError::Gang(_)), "{error}");
        assert!(error.to_string().contains("last words"), "{error}");
        let warnings = warnings(&trial);
        assert_eq!(warnings.len(), calls.len() - 1, "{warnings:?}");
        let says = |text: &String| text.starts_with("the trainer was lost at its start: rank 1 ended");
        assert!(faults.engines.losses.are_over() && warnings.iter().all(says), "{warnings:?}");
        trial.run(Faults::none()).unwrap();
    }
}

/// The trainers of some machines do not repeat their results: what is trained again continues with other weights.
#[test]
fn a_trainer_that_does_not_repeat_its_results_continues_with_a_warning() {
    let trial = Trial::new(&[PROCESSES]);
    let losses = Losses::at(&[("step", 3)]);
    trial.run(Faults::engines(EngineFaults { losses, is_noisy: true, ..EngineFaults::default() })).unwrap();
    let warnings = warnings(&trial);
    assert!(warnings[1].starts_with("batch 2: retraining gave other weights than recorded"), "{warnings:?}");
    assert_eq!((warnings.len(), steps(&trial).len()), (2, 6));
}

/// Each batch is cut once, and each group has one end, however often the trainer is lost.
#[test]
fn the_journal_of_a_replaced_trainer_is_that_of_one_attempt() {
    let trial = Trial::new(&[PROCESSES, "run.checkpoint_every=100", "stage.rl.steps=4"]);
    // The last save removes the records: the run ends before it.
    trial.run(losses(&[("step", 1), ("publish", 4), ("save", 0), ("save", 0)])).unwrap_err();
    let recovered = journal::read(&trial.config.run_directory().join("journal"), RL).unwrap();
    let (mut cuts, mut trained, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for record in recovered.log {
        match record {
            Record::Cut { batch, tickets, .. } => cuts.push((batch, tickets.len())),
            Record::Trained { batch, .. } => trained.push(PolicyVersion(batch)),
            Record::Ready { ticket, .. } => ready.push(ticket.0),
            _ => {}
        }
    }
    assert_eq!(cuts, [(0, 6), (1, 6), (2, 6), (3, 6)]);
    assert_eq!(trained, [0, 1, 2, 3].map(PolicyVersion));
    ready.sort_unstable();
    assert_eq!(ready, (0..24).collect::<Vec<_>>());
}
