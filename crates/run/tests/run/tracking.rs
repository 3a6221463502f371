//! `run.tracking`: trackers that follow a run from its start.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rloom_config::Config;
use rloom_run::{ResumeOptions, StopFlag, resume, train};
use rloom_telemetry::{Event, read_events};

const TEXT: &str = r#"
[run]
name = "tracked"
threads = 1
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 24
[data]
generator = "arithmetic"
[reward]
components = [{ kind = "length", max_tokens = 2 }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "grpo"
steps = 1
groups_per_batch = 2
[stage.algorithm]
group_size = 2
"#;

/// A program in the place of an interpreter that prints its arguments and ends with `code`.
fn program(folder: &Path, code: u8) -> String {
    let path = folder.join(format!("python-{code}"));
    std::fs::write(&path, format!("#!/bin/sh\necho \"$@\"\nexit {code}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Waits until a tracker's file has `lines` lines. The file exists once the tracker was started.
fn log(path: &Path, lines: usize) -> Vec<String> {
    for _ in 0..12_000 {
        let text = std::fs::read_to_string(path).unwrap();
        if text.lines().count() >= lines {
            return text.lines().map(str::to_owned).collect();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} has no {lines} lines", path.display());
}

#[test]
fn trackers_start_with_every_attempt_and_do_not_stop_it() {
    let folder = tempfile::tempdir().unwrap();
    let (works, fails) = (program(folder.path(), 0), program(folder.path(), 1));
    let config = |steps: u64| {
        let overrides = [
            format!("run.directory={}", folder.path().display()),
            format!("stage.rl.steps={steps}"),
            format!(
                "run.tracking=[{{kind='wandb',python='{works}',project='sums'}}, {{kind='mlflow',python='{fails}'}}]"
            ),
        ];
        Config::from_text("tracked.toml", TEXT, &overrides).map_err(|errors| errors.to_string()).unwrap()
    };
    let summary = train(&config(1), &mut (), &StopFlag::default()).unwrap();
    let run = summary.directory;
    let arguments = format!("-m rloom.track {} --to wandb --project sums", run.display());
    assert_eq!(log(&run.join("tracking/wandb.log"), 1), [arguments.as_str()]);
    assert_eq!(log(&run.join("tracking/mlflow.log"), 1).len(), 1);
    resume(&run, &config(2), ResumeOptions::default(), &mut (), &StopFlag::default()).unwrap();
    assert_eq!(log(&run.join("tracking/wandb.log"), 2), [arguments.as_str(); 2]);
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let finished = events.iter().filter(|line| matches!(line.event, Event::RunFinished { .. }));
    assert_eq!(finished.count(), 2);
}
