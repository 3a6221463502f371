//! Nothing is lost: runs that are killed, interrupted, damaged or starved go on and end in the same bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod recipe;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rloom_config::Config;
use rloom_core::{Purpose, RandomKey};
use rloom_run::{Event, EventLine, Observer, RunError, StopFlag, read_events};

const PLACE: &str = "RLOOM_TEST_RUN";

/// What a run leaves: the bytes of the last model and of the optimiser's moments.
fn result(config: &Config) -> (Vec<u8>, Vec<u8>) {
    let steps = config.stages[1].steps;
    let last = config.run_directory().join(format!("checkpoints/rl-step-{steps:06}"));
    let read = |name: &str| std::fs::read(last.join(name)).unwrap();
    (read("model.safetensors"), read("trainer/optimizer.safetensors"))
}

/// More steps, so that there is something to kill.
const LONG: [&str; 3] = ["stage.warmup.steps=20", "stage.rl.steps=40", "run.keep_every=0"];

fn undisturbed(overrides: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    result(&config)
}

fn resume(config: &Config) -> Result<rloom_run::Summary, RunError> {
    rloom_run::resume(&config.run_directory(), config, &mut (), &StopFlag::default())
}

/// Not a test of its own: the process that the others start, kill and start again.
#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let config = recipe::config(Path::new(&place), &LONG);
    if config.run_directory().join("config.toml").is_file() {
        resume(&config).unwrap();
    } else {
        // A kill before the configuration was written leaves a folder without a run.
        let _ = std::fs::remove_dir_all(config.run_directory());
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    }
}

fn start_child(place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored"])
        .env(PLACE, place)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn killed_at_random_points_and_resumed_gives_the_same_bytes() {
    let expected = undisturbed(&LONG);
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &LONG);
    let stream = RandomKey::new(11, 0, Purpose::Interactive, 0).stream();
    let mut kills = 0;
    for attempt in 0..400 {
        let mut child = start_child(directory.path());
        // Short at first, to hit the beginning; longer with time, so that a slow machine gets to the end too.
        let patience = Duration::from_millis(5 + 3 * attempt + stream.below(attempt, 120));
        std::thread::sleep(patience);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(kills >= 3, "{kills} kills");
    assert!(result(&config) == expected, "after {kills} kills");
}

/// Asks to stop when an event is seen.
struct StopAt<F: FnMut(&EventLine) -> bool>(F, StopFlag);

impl<F: FnMut(&EventLine) -> bool> Observer for StopAt<F> {
    fn observe(&mut self, line: &EventLine) {
        if (self.0)(line) && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

#[test]
fn an_interrupted_run_saves_and_goes_on() {
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
fn a_finished_run_has_nothing_left_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &[]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let before = result(&config);
    let again = resume(&config).unwrap();
    assert!(!again.interrupted);
    assert!(result(&config) == before);
    assert!(matches!(
        rloom_run::train(&config, &mut (), &StopFlag::default()),
        Err(RunError::DirectoryInUse { .. })
    ));
}

/// The newest checkpoint's folder.
fn newest(config: &Config) -> PathBuf {
    config.run_directory().join("checkpoints/rl-step-000006")
}

#[test]
fn a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used() {
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
        warnings.iter().any(|w| w.contains("rl-step-000006") && w.contains("going on from rl-step-000004")),
        "{warnings:?}"
    );
}

#[test]
fn two_processes_cannot_work_on_one_run() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["stage.warmup.steps=1", "stage.rl.steps=1"]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let held = rloom_run::directory::RunDirectory::open(&config.run_directory()).unwrap();
    let error = resume(&config).unwrap_err();
    assert!(matches!(error, RunError::Locked { .. }), "{error}");
    drop(held);
    resume(&config).unwrap();
}

/// Every write to this device fails with "no space left".
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_run_and_loses_nothing() {
    let expected = undisturbed(&[]);
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &[]);
    let stop = StopFlag::default();
    let here = |line: &EventLine| line.stage == "rl" && matches!(line.event, Event::Step { .. });
    rloom_run::train(&config, &mut StopAt(here, stop.clone()), &stop).unwrap();
    let segment = config.run_directory().join("journal/stage-01-from-000001.log");
    std::fs::remove_file(&segment).unwrap();
    std::os::unix::fs::symlink("/dev/full", &segment).unwrap();
    let error = resume(&config).unwrap_err().to_string();
    assert!(error.contains("stage-01-from-000001.log") && error.contains("hint: free some space"), "{error}");
    std::fs::remove_file(&segment).unwrap();
    resume(&config).unwrap();
    assert!(result(&config) == expected);
}

/// Remembers how many lines of telemetry were lost.
struct Lost(u64);
impl Observer for Lost {
    fn observe(&mut self, line: &EventLine) {
        if let Event::RunFinished { lost_lines, .. } = line.event {
            self.0 = lost_lines;
        }
    }
}

#[test]
fn telemetry_that_cannot_be_written_is_counted_and_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["stage.warmup.steps=1", "stage.rl.steps=1"]);
    // A folder in the place of the file: it cannot be opened for writing.
    let run = config.run_directory();
    std::fs::create_dir_all(&run).unwrap();
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    std::fs::remove_file(run.join("events.jsonl")).unwrap();
    std::fs::create_dir(run.join("events.jsonl")).unwrap();
    let mut lost = Lost(0);
    rloom_run::resume(&run, &config, &mut lost, &StopFlag::default()).unwrap();
    assert!(lost.0 > 0);
}

#[test]
fn a_loss_that_is_not_finite_names_step_samples_and_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = ["stage.warmup.trainer.learning_rate=1e38", "run.checkpoint_every=1", "eval.every=100"];
    let config = recipe::config(directory.path(), &overrides);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    let RunError::NotFinite { stage, step: 2, samples, checkpoint, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((stage.as_str(), samples.starts_with("16/0, 17/0")), ("warmup", true), "{error}");
    assert!(checkpoint.ends_with("checkpoints/warmup-step-000001"), "{error}");
    rloom_run::checkpoint::verify(Path::new(checkpoint)).unwrap();
}

#[test]
fn weights_that_diverged_are_noticed_where_they_are_sampled_from() {
    let directory = tempfile::tempdir().unwrap();
    let overrides =
        ["stage.rl.trainer.learning_rate=1e38", "reward.components=[{kind='random'},{kind='exact'}]"];
    let config = recipe::config(directory.path(), &overrides);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    assert!(matches!(error, RunError::Group { step: 2, .. }), "{error}");
    rloom_run::checkpoint::verify(&config.run_directory().join("checkpoints/warmup-step-000004")).unwrap();
}

#[test]
fn a_prompt_that_does_not_fit_names_its_task() {
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
fn a_place_that_cannot_be_written_is_named() {
    let config = recipe::config(Path::new("/proc/no-such-place"), &[]);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err().to_string();
    assert!(error.contains("/proc/no-such-place/tiny"), "{error}");
}
