//! Recovery: interrupted runs, runs with damaged files and runs on a full disk resume and end in the same bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::recipe;
use miette::Diagnostic;
use rloom_config::Config;
use rloom_run::{ResumeOptions, RunError, StageError, StopFlag};
use rloom_store::StoreError;
use rloom_store::faults::{Fault, FaultPlan, install};
use rloom_telemetry::{Event, EventLine, Observer, StepFiles, read_events, rollout_log};

/// Final weights and optimiser state.
fn result(config: &Config) -> (Vec<u8>, Vec<u8>) {
    let steps = config.stages[1].steps;
    let last = config.run_directory().join(format!("checkpoints/rl-step-{steps:06}"));
    let read = |name: &str| std::fs::read(last.join(name)).unwrap();
    (read("model.safetensors"), read("trainer/optimizer.safetensors"))
}

fn undisturbed(overrides: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    result(&config)
}

fn resume(config: &Config) -> Result<rloom_run::Summary, RunError> {
    rloom_run::resume(
        &config.run_directory(),
        config,
        ResumeOptions::default(),
        &mut (),
        &StopFlag::default(),
    )
}

/// Requests a stop at an event.
struct StopAt<F: FnMut(&EventLine) -> bool>(F, StopFlag);

impl<F: FnMut(&EventLine) -> bool> Observer for StopAt<F> {
    fn observe(&mut self, line: &EventLine) {
        if (self.0)(line) && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

#[test]
fn an_interrupted_run_saves_and_resumes() {
    let expected = undisturbed(&[]);
    for (stage, step) in [("warmup", 1), ("warmup", 3), ("rl", 1), ("rl", 3)] {
        let directory = tempfile::tempdir().unwrap();
        let config = recipe::config(directory.path(), &[]);
        let stop = StopFlag::default();
        let here = move |line: &EventLine| {
            line.stage == stage && line.step == step && matches!(line.event, Event::Step { .. })
        };
        let mut observer = StopAt(here, stop.clone());
        let summary = rloom_run::train(&config, &mut observer, &stop).unwrap();
        assert!(summary.interrupted);
        let saved = summary.model.unwrap();
        assert!(saved.ends_with(format!("{stage}-step-{step:06}")), "{}", saved.display());
        assert!(!resume(&config).unwrap().interrupted);
        assert!(result(&config) == expected, "stopped at {stage} {step}");
    }
}

#[test]
fn resuming_a_finished_run_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &[]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let before = result(&config);
    let again = resume(&config).unwrap();
    assert!(!again.interrupted);
    assert!(result(&config) == before);
    assert!(matches!(
        rloom_run::train(&config, &mut (), &StopFlag::default()),
        Err(RunError::Store(StoreError::DirectoryInUse { .. }))
    ));
}

/// The newest checkpoint's folder.
fn newest(config: &Config) -> PathBuf {
    config.run_directory().join("checkpoints/rl-step-000006")
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_previous_one_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &[]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let expected = result(&config);
    let file = newest(&config).join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    resume(&config).unwrap();
    assert!(result(&config) == expected);
    let warnings: Vec<String> = read_events(&config.run_directory().join("events.jsonl"))
        .unwrap()
        .into_iter()
        .filter_map(|line| match line.event {
            Event::Warning { message } => Some(message),
            _ => None,
        })
        .collect();
    assert!(
        warnings.iter().any(|w| w.contains("rl-step-000006") && w.contains("resuming from rl-step-000004")),
        "{warnings:?}"
    );
}

/// Several stops and resumed attempts are replayed as one history from a checkpoint before all of them.
#[test]
fn damaged_checkpoints_of_stops_are_skipped() {
    for schedule in [
        &["schedule.max_staleness=2"][..],
        &["schedule.max_staleness=2", "schedule.pin_version=true"],
        &["schedule.max_staleness=1", "schedule.cut_order=completion", "schedule.oversample=2"],
        &["schedule.oversample=3", "schedule.cut_order=completion", "schedule.stragglers=defer"],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let overrides = [
            &[
                "stage.rl.steps=14",
                "run.checkpoint_every=4",
                "run.keep_last=9",
                "run.keep_every=0",
                "eval.every=3",
                "sampling.max_new_tokens=12",
                "reward.components=[{kind='random'},{kind='exact'}]",
            ],
            schedule,
        ]
        .concat();
        let config = recipe::config(directory.path(), &overrides);
        let run = config.run_directory();
        for at in [5, 8, 10] {
            let stop = StopFlag::default();
            let here = |line: &EventLine| {
                line.stage == "rl" && line.step == at && matches!(line.event, Event::Step { .. })
            };
            let mut observer = StopAt(here, stop.clone());
            let summary = if at == 5 {
                rloom_run::train(&config, &mut observer, &stop).unwrap()
            } else {
                rloom_run::resume(&run, &config, ResumeOptions::default(), &mut observer, &stop).unwrap()
            };
            assert!(summary.interrupted, "{schedule:?}, {at}");
        }
        let damage = || {
            for step in 5..14 {
                let file = run.join(format!("checkpoints/rl-step-{step:06}/model.safetensors"));
                if let Ok(bytes) = std::fs::read(&file) {
                    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
                }
            }
        };
        damage();
        let stop = StopFlag::default();
        let here = |line: &EventLine| {
            line.stage == "rl" && line.step == 12 && matches!(line.event, Event::Step { .. })
        };
        let again = rloom_run::resume(
            &run,
            &config,
            ResumeOptions::default(),
            &mut StopAt(here, stop.clone()),
            &stop,
        )
        .unwrap();
        assert!(again.interrupted);
        // The records of that attempt are part of the history as well.
        damage();
        assert!(!resume(&config).unwrap().interrupted, "{schedule:?}");
        let lines = read_events(&run.join("events.jsonl")).unwrap();
        let from: Vec<String> = lines
            .iter()
            .filter_map(|line| match &line.event {
                Event::RunStarted { resumed_from, .. } => resumed_from.clone(),
                _ => None,
            })
            .collect();
        assert_eq!(from[2..], ["rl-step-000004", "rl-step-000004"]);
        let rewards = |attempt: u32| {
            lines.iter().filter(move |line| line.attempt == attempt && line.stage == "rl").filter_map(
                |line| match &line.event {
                    Event::Step { metrics } => Some((line.step, metrics["reward"], metrics["loss"])),
                    _ => None,
                },
            )
        };
        for attempt in 1..=4 {
            for step in rewards(attempt) {
                assert!(step.0 < 5 || rewards(5).any(|last| last == step), "{schedule:?}: {step:?}");
            }
        }
    }
}

#[test]
fn a_pinned_run_without_its_journal_names_the_missing_weights() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = ["schedule.max_staleness=2", "schedule.pin_version=true", "stage.rl.steps=12"];
    let config = recipe::config(directory.path(), &overrides);
    let stop = StopFlag::default();
    let here =
        |line: &EventLine| line.stage == "rl" && line.step == 6 && matches!(line.event, Event::Step { .. });
    rloom_run::train(&config, &mut StopAt(here, stop.clone()), &stop).unwrap();
    let run = config.run_directory();
    for segment in std::fs::read_dir(run.join("journal")).unwrap() {
        std::fs::remove_file(segment.unwrap().path()).unwrap();
    }
    match resume(&config) {
        // All groups were still in flight.
        Ok(_) => {}
        Err(error @ RunError::Stage(StageError::PinnedWeightsMissing { .. })) => {
            let text = error.to_string();
            assert!(text.contains("rl-step-000006") && error.help().is_some(), "{text}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// The groups that batches could reuse are in the journal: without it a resumed run reuses those that it trains on afterwards.
#[test]
fn a_run_without_its_journal_reuses_the_groups_that_follow() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = ["stage.rl.steps=9", "schedule.reuse={share=0.25,max_age=3,max_uses=2}"];
    let config = recipe::config(directory.path(), &overrides);
    let stop = StopFlag::default();
    let here =
        |line: &EventLine| line.stage == "rl" && line.step == 5 && matches!(line.event, Event::Step { .. });
    rloom_run::train(&config, &mut StopAt(here, stop.clone()), &stop).unwrap();
    let run = config.run_directory();
    for segment in std::fs::read_dir(run.join("journal")).unwrap() {
        std::fs::remove_file(segment.unwrap().path()).unwrap();
    }
    assert!(!resume(&config).unwrap().interrupted);
    let files = StepFiles::new(&run, "rl", u64::MAX);
    let tickets = |step: u64| -> Vec<u64> {
        rollout_log::read(&files.path(step)).unwrap().iter().map(|group| group.ticket.0).collect()
    };
    let (mut new, mut reused) = (BTreeSet::new(), Vec::new());
    for step in 1..=9 {
        let own = tickets(step);
        // Six new groups, then at most two of earlier batches of the same attempt.
        assert!(own[..6].iter().all(|ticket| new.insert(*ticket)), "step {step}: {own:?}");
        if step == 6 {
            new = own.iter().copied().collect();
        }
        assert!(own[6..].iter().all(|ticket| new.contains(ticket)), "step {step}: {own:?}");
        reused.push(own.len() - 6);
    }
    assert_eq!(reused, [0, 2, 2, 2, 2, 0, 2, 2, 2]);
}

#[test]
fn a_run_is_locked_by_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["stage.warmup.steps=1", "stage.rl.steps=1"]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let held = rloom_store::directory::RunDirectory::open(&config.run_directory()).unwrap();
    let error = resume(&config).unwrap_err();
    assert!(matches!(error, RunError::Store(StoreError::Locked { .. })), "{error}");
    drop(held);
    resume(&config).unwrap();
}

#[test]
fn a_run_stopped_by_a_full_disk_resumes_to_the_same_result() {
    let expected = undisturbed(&[]);
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &[]);
    let stop = StopFlag::default();
    let here = |line: &EventLine| line.stage == "rl" && matches!(line.event, Event::Step { .. });
    rloom_run::train(&config, &mut StopAt(here, stop.clone()), &stop).unwrap();
    let below = config.run_directory().join("journal");
    // Operation 0 creates the folder, which exists.
    let full = install(FaultPlan {
        folder: below,
        faults: (1..100).map(|number| (number, Fault::DiskFull)).collect(),
    });
    let error = resume(&config).unwrap_err();
    assert!(error.to_string().contains("journal/stage-01-from-"), "{error}");
    // The hint of `StoreError::Io`, which is followed.
    let hint = error.help().unwrap().to_string();
    assert!(hint.starts_with("free some disk space"), "{hint}");
    drop(full);
    resume(&config).unwrap();
    assert!(result(&config) == expected);
}

/// Records the number of lost telemetry lines.
struct Lost(u64);
impl Observer for Lost {
    fn observe(&mut self, line: &EventLine) {
        if let Event::RunFinished { lost_lines, .. } = line.event {
            self.0 = lost_lines;
        }
    }
}

#[test]
fn telemetry_that_cannot_be_written_is_counted_and_does_not_stop_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["stage.warmup.steps=1", "stage.rl.steps=1"]);
    // A folder instead of the file cannot be opened for writing.
    let run = config.run_directory();
    std::fs::create_dir_all(&run).unwrap();
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    std::fs::remove_file(run.join("events.jsonl")).unwrap();
    std::fs::create_dir(run.join("events.jsonl")).unwrap();
    let mut lost = Lost(0);
    rloom_run::resume(&run, &config, ResumeOptions::default(), &mut lost, &StopFlag::default()).unwrap();
    assert!(lost.0 > 0);
}

#[test]
fn a_loss_that_is_not_finite_names_step_samples_and_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = ["stage.warmup.trainer.learning_rate=1e38", "run.checkpoint_every=1", "eval.every=100"];
    let config = recipe::config(directory.path(), &overrides);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    let RunError::Stage(StageError::NotFinite { stage, step: 2, cause, checkpoint, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(stage, "warmup");
    assert!(cause.to_string().contains("(samples 16/0, 17/0, "), "{error}");
    assert!(checkpoint.ends_with("checkpoints/warmup-step-000001"), "{error}");
    rloom_store::checkpoint::verify(Path::new(checkpoint)).unwrap();
}

#[test]
fn diverged_weights_are_an_error_of_the_sampler() {
    let directory = tempfile::tempdir().unwrap();
    let overrides =
        ["stage.rl.trainer.learning_rate=1e38", "reward.components=[{kind='random'},{kind='exact'}]"];
    let config = recipe::config(directory.path(), &overrides);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    assert!(matches!(error, RunError::Stage(StageError::Group { step: 2, .. })), "{error}");
    rloom_store::checkpoint::verify(&config.run_directory().join("checkpoints/warmup-step-000004")).unwrap();
}

#[test]
fn a_prompt_that_exceeds_the_context_names_its_task() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["model.new.max_positions=9", "stage.warmup.steps=1"]);
    // Sums of two digits and five new tokens need up to eleven positions.
    match rloom_run::train(&config, &mut (), &StopFlag::default()) {
        Ok(_) => {}
        Err(error) => assert!(error.to_string().contains("task"), "{error}"),
    }
    let config =
        recipe::config(&directory.path().join("b"), &["model.new.max_positions=6", "stage.warmup.steps=1"]);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err().to_string();
    assert!(error.contains("task") && error.contains('6'), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let config = recipe::config(Path::new("/proc/no-such-place"), &[]);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err().to_string();
    assert!(error.contains("/proc/no-such-place/tiny"), "{error}");
}
