//! `rloom track` and `run.tracking`, with a program in the place of Python.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Sandbox, signal, trained};

/// Writes a program that appends each request to `requests` and answers it.
fn python(sandbox: &Sandbox, name: &str, answer: &str) -> String {
    let requests = sandbox.path("requests");
    let text = format!(
        "#!/bin/sh\nwhile read -r line; do printf '%s\\n' \"$line\" >> {}; {answer}; done\n",
        requests.display()
    );
    sandbox.write(name, &text);
    let path = sandbox.path(name);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

fn requests(sandbox: &Sandbox) -> Vec<Value> {
    let text = std::fs::read_to_string(sandbox.path("requests")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until the last of the requests fulfils a condition.
fn wait(sandbox: &Sandbox, condition: impl Fn(&Value) -> bool) -> Vec<Value> {
    for _ in 0..12_000 {
        let requests = requests(sandbox);
        if requests.last().is_some_and(&condition) {
            return requests;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", requests(sandbox).last());
}

fn steps(requests: &[Value]) -> Vec<u64> {
    requests.iter().filter_map(|request| request["log"]["step"].as_u64()).collect()
}

/// Removes the event that ends the run.
fn remove_end(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("run_finished")).collect();
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn a_finished_run_is_passed_on() {
    let sandbox = trained();
    let python = python(&sandbox, "python", "echo '{}'");
    let command = ["track", "tiny", "--to", "trackio", "--project", "sums", "--python", &python];
    let result = sandbox.run(&command);
    assert_eq!(result.text(), "exit code 0\n----- stdout\n----- stderr\n");
    let requests = requests(&sandbox);
    let start = &requests[0]["start"];
    assert_eq!((&start["name"], &start["project"]), (&"tiny".into(), &"sums".into()));
    assert_eq!(start["settings"]["stage.rl.steps"], 4);
    assert_eq!(requests.last().unwrap()["finish"]["state"], "finished");
    let mut steps = steps(&requests);
    steps.dedup();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(
        requests.iter().any(|request| request["table"]["rows"].as_array().is_some_and(|r| !r.is_empty()))
    );
    let result = sandbox.run(&["track", "tiny", "--to", "tensorboard"]);
    assert_eq!(result.code, Some(2), "{}", result.text());
}

#[test]
fn a_tracker_that_dies_is_an_error() {
    let sandbox = trained();
    let python = python(&sandbox, "python", "case $line in *log*) exit 3;; *) echo '{}';; esac");
    let result = sandbox.run(&["track", "tiny", "--to", "mlflow", "--python", &python]);
    assert_eq!(
        (result.code, result.stderr.as_str()),
        (
            Some(1),
            "error: the process of mlflow ended (exit status: 3); the same command continues after the last step\n"
        )
    );
}

#[test]
fn a_tracker_that_is_stopped_ends_the_connection() {
    for name in ["-TERM", "-HUP"] {
        is_stopped_by(name);
    }
}

fn is_stopped_by(name: &str) {
    let sandbox = trained();
    let python = python(&sandbox, "python", "echo '{}'");
    remove_end(&sandbox.path("runs/tiny/events.jsonl"));
    let lock = File::open(sandbox.path("runs/tiny/lock")).unwrap();
    lock.lock().unwrap();
    let mut command = sandbox.command(&["track", "tiny", "--to", "wandb", "--python", &python]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait(&sandbox, |request| request["log"]["step"] == 7);
    signal(&child, name);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(requests(&sandbox).last().unwrap()["finish"]["state"], "running");
}

#[test]
fn trackers_of_a_recipe_start_with_every_attempt_and_do_not_stop_it() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", crate::support::TINY);
    let python = python(&sandbox, "python", "echo '{}'");
    let tracking = format!(
        "run.tracking=[{{kind='wandb',python='{python}',project='sums'}}, {{kind='mlflow',python='no-such-python'}}]"
    );
    let result = sandbox.run(&["train", "tiny.toml", "--set", &tracking]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    let is_end = |request: &Value| request["finish"]["state"] == "finished";
    let first = wait(&sandbox, is_end);
    assert_eq!(first[0]["start"]["project"], "sums");
    std::fs::remove_file(sandbox.path("requests")).unwrap();
    let result = sandbox.run(&["train", "--resume", "runs/tiny", "--set", "stage.rl.steps=5"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    let second = wait(&sandbox, is_end);
    assert_eq!(second[0]["start"]["key"], first[0]["start"]["key"]);
    let mut steps = steps(&second);
    steps.dedup();
    assert_eq!(steps, [8], "the step that the first attempt did not have");
    let log = std::fs::read_to_string(sandbox.path("runs/tiny/tracking/mlflow.log")).unwrap();
    assert!(log.starts_with("error: could not start the tracker mlflow with no-such-python: "), "{log}");
    assert!(
        log.contains("\nhint: name a Python interpreter of an environment that has the package `mlflow`"),
        "{log}"
    );
}

#[test]
fn hints_are_followed() {
    let sandbox = trained();
    let good = python(&sandbox, "good", "echo '{}'");
    let bare =
        python(&sandbox, "bare", r#"echo '{"missing": "wandb", "python": "/bare", "error": "no module"}'"#);
    let track = |python: &str| sandbox.run(&["track", "tiny", "--to", "wandb", "--python", python]);
    let fails = |python: &str, error: &str, hint: &str| {
        let result = track(python);
        assert_eq!(result.code, Some(1), "{}", result.text());
        assert!(result.stderr.contains(error) && result.stderr.contains(hint), "{}", result.text());
    };
    let succeeds = || {
        let result = track(&good);
        assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    };
    // TrackingError::Interpreter and TrackingError::NotInstalled: another interpreter.
    fails("no-such-python", "no-such-python", "hint: name a Python interpreter of an environment that has");
    succeeds();
    fails(&bare, "error: /bare has no package wandb", "or name another interpreter with --python");
    succeeds();
    // TrackingError::DamagedState: the file is removed.
    let record = sandbox.path("runs/tiny/tracking/wandb.json");
    std::fs::write(&record, "{").unwrap();
    fails(&good, "wandb.json is damaged", "hint: remove it to track the run as a new one");
    std::fs::remove_file(&record).unwrap();
    std::fs::remove_file(sandbox.path("requests")).unwrap();
    succeeds();
    assert!(steps(&requests(&sandbox)).contains(&7), "the run is passed on again");
}
