//! Resumed runs whose settings or data have changed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use crate::recipe;
use miette::Diagnostic;
use rloom_config::Config;
use rloom_run::{ResumeOptions, RunError, StageError, StopFlag, Summary};
use rloom_telemetry::{Event, EventLine, Observer, read_events};

/// Loads the stored configuration of a run with overrides, as `rloom train --resume --set` does.
fn changed(run: &Path, overrides: &[&str]) -> Config {
    Config::load(&[run.join("config.toml")], overrides).map_err(|errors| errors.to_string()).unwrap()
}

fn resume(run: &Path, overrides: &[&str]) -> Result<Summary, RunError> {
    resume_with(run, overrides, ResumeOptions::default())
}

fn resume_with(run: &Path, overrides: &[&str], options: ResumeOptions) -> Result<Summary, RunError> {
    rloom_run::resume(run, &changed(run, overrides), options, &mut (), &StopFlag::default())
}

fn weights(run: &Path, step: u64) -> Vec<u8> {
    std::fs::read(run.join(format!("checkpoints/rl-step-{step:06}/model.safetensors"))).unwrap()
}

#[test]
fn a_longer_run_is_the_run_that_was_longer_from_the_start() {
    let [short, long] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let train = |config: &Config| rloom_run::train(config, &mut (), &StopFlag::default()).unwrap();
    let long = recipe::config(long.path(), &[]);
    train(&long);
    let short = recipe::config(short.path(), &["stage.rl.steps=3"]);
    train(&short);
    let run = short.run_directory();
    resume(&run, &["stage.rl.steps=6", "run.threads=1"]).unwrap();
    assert!(weights(&run, 6) == weights(&long.run_directory(), 6));
    let stored = changed(&run, &[]);
    assert_eq!((stored.stages[1].steps, stored.run.threads), (6, 1));
    let before = std::fs::read_to_string(run.join("config-1.toml")).unwrap();
    assert!(before.contains("steps = 3"), "{before}");
    // A later resume needs no override.
    assert!(!resume(&run, &[]).unwrap().interrupted);
}

#[test]
fn a_checkpoint_becomes_a_run_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["stage.rl.steps=4"]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let run = config.run_directory();
    let fork = |checkpoint: &str, overrides: &[&str]| {
        let mut config = changed(&run, overrides);
        config.run.name = "fork".to_owned();
        let options = ResumeOptions::default();
        rloom_run::fork(&run, checkpoint, &config, options, &mut (), &StopFlag::default())
    };
    let error = fork("rl-step-000003", &[]).unwrap_err();
    let help = error.help().unwrap().to_string();
    assert!(help.contains("rl-step-000002") && help.contains("warmup-step-000004"), "{help}");
    assert!(matches!(fork("rl-step-000002", &["run.seed=9"]), Err(RunError::CannotChange { .. })));
    fork("rl-step-000002", &["stage.rl.steps=6"]).unwrap();
    let forked = directory.path().join("fork");
    assert!(weights(&forked, 4) == weights(&run, 4), "the same settings give the same weights");
    weights(&forked, 6);
    assert!(!run.join("checkpoints/rl-step-000006").exists());
    assert!(!resume(&forked, &[]).unwrap().interrupted);
}

/// Stops at once after a step of the stage `rl`.
struct StopAfter(u64, StopFlag);

impl Observer for StopAfter {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == "rl" && line.step == self.0 && matches!(line.event, Event::Step { .. }) {
            self.1.request();
            self.1.request();
        }
    }
}

#[test]
fn the_same_command_continues_a_run_with_resume_auto() {
    let [stopped, undisturbed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let auto = "run.resume=auto";
    let config = recipe::config(stopped.path(), &[auto]);
    let train = |config: &Config| rloom_run::train(config, &mut (), &StopFlag::default());
    let run = config.run_directory();
    let attempts = || {
        let events = read_events(&run.join("events.jsonl")).unwrap();
        let started = events.into_iter().filter_map(|line| match line.event {
            Event::RunStarted { resumed_from, .. } => Some(resumed_from),
            _ => None,
        });
        started.collect::<Vec<_>>()
    };
    // A process that was killed before it had written the configuration.
    for folder in ["checkpoints", "journal"] {
        std::fs::create_dir_all(run.join(folder)).unwrap();
    }
    std::fs::write(run.join("lock"), "").unwrap();
    let stop = StopFlag::default();
    // The recipe may get the key later.
    let first = recipe::config(stopped.path(), &[]);
    let ended = rloom_run::train(&first, &mut StopAfter(3, stop.clone()), &stop);
    assert!(matches!(ended, Err(RunError::Stage(StageError::StoppedNow { .. }))), "{ended:?}");
    assert!(!train(&config).unwrap().interrupted);
    assert_eq!(attempts().len(), 2);
    assert!(attempts()[1].is_some(), "{:?}", attempts());

    let whole = recipe::config(undisturbed.path(), &[]);
    train(&whole).unwrap();
    assert!(weights(&run, 6) == weights(&whole.run_directory(), 6));

    // A finished run stays as it is; more steps are added; another seed is another run.
    train(&config).unwrap();
    assert!(weights(&run, 6) == weights(&whole.run_directory(), 6));
    train(&recipe::config(stopped.path(), &[auto, "stage.rl.steps=8"])).unwrap();
    weights(&run, 8);
    let error =
        train(&recipe::config(stopped.path(), &[auto, "stage.rl.steps=8", "run.seed=4"])).unwrap_err();
    assert!(matches!(error, RunError::CannotChange { .. }), "{error}");
    let again = train(&recipe::config(stopped.path(), &[]));
    assert!(matches!(again, Err(RunError::Store(rloom_store::StoreError::DirectoryInUse { .. }))));
}

#[test]
fn another_learning_rate_applies_from_the_newest_checkpoint_on() {
    let directory = tempfile::tempdir().unwrap();
    // Every batch has something to learn.
    let overrides = [
        "reward.components=[{kind='random'},{kind='exact'}]",
        "schedule.max_staleness=1",
        "schedule.pin_version=true",
    ];
    let config = recipe::config(directory.path(), &overrides);
    let (run, stop) = (config.run_directory(), StopFlag::default());
    let ended = rloom_run::train(&config, &mut StopAfter(3, stop.clone()), &stop);
    assert!(matches!(ended, Err(RunError::Stage(StageError::StoppedNow { .. }))));
    // The training thread may still hold the lock.
    let summary = loop {
        match resume(&run, &["stage.rl.trainer.learning_rate=1e-2"]) {
            Err(RunError::Store(rloom_store::StoreError::Locked { .. })) => std::thread::yield_now(),
            ended => break ended.unwrap(),
        }
    };
    assert!(!summary.interrupted);
    let undisturbed = tempfile::tempdir().unwrap();
    let config = recipe::config(undisturbed.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    assert!(weights(&run, 2) == weights(&config.run_directory(), 2));
    assert!(weights(&run, 6) != weights(&config.run_directory(), 6));
}

#[test]
fn settings_that_cannot_change_are_refused_with_their_reasons() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["stage.rl.steps=2"]);
    let run = config.run_directory();
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let error = resume(&run, &["run.seed=4", "stage.rl.algorithm.group_size=2"]).unwrap_err();
    let text = error.to_string();
    for wanted in
        ["run.seed: 4 instead of 3 (all random streams depend on it)", "stage.rl.algorithm.group_size: 2"]
    {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(error.help().is_some());
    for (set, done) in
        [("stage.warmup.steps=9", "all its steps are trained"), ("stage.rl.steps=1", "2 steps are trained")]
    {
        let error = resume(&run, &[set]).unwrap_err();
        assert!(
            matches!(error, RunError::StepsAreDone { .. }) && error.to_string().ends_with(done),
            "{error}"
        );
    }
    assert_eq!(changed(&run, &[]).stages[1].steps, 2, "refused settings are not stored");
    let events = read_events(&run.join("events.jsonl")).unwrap();
    assert!(events.iter().all(|line| line.attempt == 1), "a refused attempt leaves no events");
}

/// Sums, as rows of a JSONL file.
fn rows(count: u64, shift: u64) -> String {
    (0..count).fold(String::new(), |mut text, i| {
        let _ = writeln!(text, r#"{{"prompt": "{i}+{shift}=", "answer": "{}"}}"#, i + shift);
        text
    })
}

#[test]
fn changed_data_is_noticed_and_moved_data_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let [train, held_out, moved] =
        ["train.jsonl", "eval.jsonl", "moved.jsonl"].map(|name| directory.path().join(name));
    std::fs::write(&train, rows(40, 1)).unwrap();
    std::fs::write(&held_out, rows(8, 2)).unwrap();
    // Relative to the working directory, as users write it.
    let here = std::env::current_dir().unwrap();
    let up: String = here.components().skip(1).map(|_| "../").collect();
    let relative = |path: &Path| format!("{up}{}", path.strip_prefix("/").unwrap().display());
    let text = format!(
        r#"
        [run]
        name = "files"
        directory = "{}"
        threads = 2
        [model.new]
        layers = 1
        hidden_size = 16
        heads = 2
        intermediate_size = 24
        max_positions = 32
        [tokenizer]
        alphabet = "0123456789+= "
        [data]
        path = "{}"
        eval_path = "{}"
        [sampling]
        max_new_tokens = 3
        [reward]
        components = [{{ kind = "random" }}, {{ kind = "exact" }}]
        [eval]
        every = 2
        tasks = 4
        [[stage]]
        name = "rl"
        method = "grpo"
        steps = 2
        groups_per_batch = 2
        [stage.algorithm]
        group_size = 2
        "#,
        directory.path().display(),
        relative(&train),
        relative(&held_out),
    );
    let config = Config::from_text("files.toml", &text, &[] as &[&str]).map_err(|e| e.to_string()).unwrap();
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let run = config.run_directory();
    let stored = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert_eq!(
        stored.matches("path = \"/").count(),
        4,
        "paths of stage and evaluation are absolute: {stored}"
    );

    // The same rows elsewhere are the same data; other rows are not.
    std::fs::rename(&train, &moved).unwrap();
    let error = resume(&run, &["stage.rl.steps=3"]).unwrap_err();
    assert!(error.to_string().contains("train.jsonl"), "{error}");
    let of_stage = format!("stage.rl.data.path={}", moved.display());
    let of_evaluation = format!("eval.data.path={}", moved.display());
    resume(&run, &["stage.rl.steps=3", &of_stage, &of_evaluation]).unwrap();

    std::fs::write(&moved, rows(40, 3)).unwrap();
    let error = resume(&run, &["stage.rl.steps=4"]).unwrap_err();
    assert!(matches!(error, RunError::DataChanged { .. }), "{error}");
    assert!(error.to_string().contains("moved.jsonl has changed since the run started"), "{error}");
    assert!(error.help().unwrap().to_string().contains("--accept-changed-data"));
    std::fs::write(&moved, rows(41, 1)).unwrap();
    assert!(resume(&run, &["stage.rl.steps=4"]).is_err());
    let accepting = ResumeOptions { accept_changed_data: true };
    resume_with(&run, &["stage.rl.steps=4"], accepting).unwrap();
    // Accepted once, it is the data of the run.
    resume(&run, &["stage.rl.steps=5"]).unwrap();
    std::fs::write(&held_out, rows(9, 2)).unwrap();
    let error = resume(&run, &["stage.rl.steps=6"]).unwrap_err();
    assert!(error.to_string().contains("eval.jsonl has changed"), "{error}");

    // A refused fork leaves nothing.
    let checkpoint = std::fs::read_link(run.join("checkpoints/latest")).unwrap();
    let mut forked = changed(&run, &["stage.rl.steps=6"]);
    forked.run.name = "fork".to_owned();
    let fork = |options| {
        rloom_run::fork(&run, checkpoint.to_str().unwrap(), &forked, options, &mut (), &StopFlag::default())
    };
    let error = fork(ResumeOptions::default()).unwrap_err();
    assert!(matches!(error, RunError::DataChanged { .. }), "{error}");
    assert!(!forked.run_directory().exists());
    fork(accepting).unwrap();
    // The data of the new run is that which it was started with; the other run keeps its own.
    resume(&forked.run_directory(), &[]).unwrap();
    assert!(resume(&run, &[]).is_err());
}
