//! Messages of the program: help, lists, errors, dry runs. Changes of the text are reviewed as snapshots.

use std::fmt::Write as _;

use crate::support::{Sandbox, TINY, snapshot, without_memory};

#[test]
fn help() {
    let sandbox = Sandbox::new();
    let commands: [&[&str]; 14] = [
        &["--help"],
        &["train", "--help"],
        &["eval", "--help"],
        &["generate", "--help"],
        &["chat", "--help"],
        &["inspect", "--help"],
        &["replay", "--help"],
        &["plan", "--help"],
        &["algo", "--help"],
        &["algo", "list", "--help"],
        &["algo", "show", "--help"],
        &["bench", "--help"],
        &["doctor", "--help"],
        &[],
    ];
    let mut text = String::new();
    for arguments in commands {
        let result = sandbox.run(arguments);
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), result.text());
    }
    snapshot("help", &text);
}

#[test]
fn usage_errors_exit_with_2() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let cases: [&[&str]; 12] = [
        &["trian"],
        &["train"],
        &["train", "tiny.toml", "--resume", "x"],
        &["train", "--resume", "nothing"],
        &["train", "none.toml"],
        &["train", "tiny.toml", "--set", "stage.rl.steps"],
        &["inspect", "nothing"],
        &["inspect", "nothing", "rl/x"],
        &["replay", "nothing", "12/3"],
        &["plan", "none.toml"],
        &["generate", "nothing", "x"],
        &["algo", "show", "drgrpo"],
    ];
    let mut text = String::new();
    for arguments in cases {
        let result = sandbox.run(arguments);
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), result.text());
    }
    snapshot("usage", &text);
    assert_eq!(std::fs::read_dir(sandbox.path("")).unwrap().count(), 1, "no run was started");
}

#[test]
fn configuration_errors_show_their_lines() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "tiny.toml",
        &TINY.replace("hidden_size", "hidden_sise").replace("steps = 4", "steps = \"4\""),
    );
    let result = sandbox.run(&["train", "tiny.toml", "--set", "trainer.learning_rat=1"]);
    assert_eq!(result.code, Some(2));
    snapshot("config_error", &result.text());
    let json = sandbox.run(&["train", "tiny.toml", "--json"]);
    assert_eq!((json.code, json.stdout.as_str()), (Some(2), ""));
    for line in json.stderr.lines() {
        let error: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(error["error"]["code"], 2);
        assert!(error["error"]["places"][0]["line"].as_u64().unwrap() > 0);
    }
    snapshot("config_error_json", &json.text());
}

#[test]
fn a_dry_run_prints_a_configuration_that_resolves_to_itself() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    // The memory estimate depends on the number of threads.
    let overrides = ["--set", "stage.rl.steps=9", "--set", "run.threads=2", "--run-name", "twice"];
    let first = sandbox.run(&[&["train", "tiny.toml", "--dry-run"], &overrides[..]].concat());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    snapshot("dry_run", &without_memory(&first.text()));
    sandbox.write("resolved.toml", &first.stdout);
    let second = sandbox.run(&["train", "resolved.toml", "--dry-run", "--quiet"]);
    assert_eq!((second.stdout, second.stderr.as_str()), (first.stdout, ""));
    let json = sandbox.run(&["train", "tiny.toml", "--dry-run", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["config"]["stage"][1]["algorithm"]["group_size"], 2);
    assert!(value["plan"]["parameters"].as_u64().unwrap() > 1000);
    let overlapping = sandbox.run(&["train", "tiny.toml", "--dry-run", "--set", "schedule.max_staleness=2"]);
    assert!(
        overlapping.stderr.contains("tokens trained on, up to 2 versions stale"),
        "{}",
        overlapping.stderr
    );
    assert!(overlapping.stdout.contains("[stage.algorithm.correction]"), "{}", overlapping.stdout);
    let clip = ["train", "tiny.toml", "--dry-run", "--set", "stage.rl.algorithm.loss.clip_high=0.28"];
    let idle = sandbox.run(&clip);
    assert!(
        idle.stderr.contains("warning: `stage.rl.algorithm.loss.clip_high` has no effect: "),
        "{}",
        idle.stderr
    );
    let json = sandbox.run(&[&clip[..], &["--json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["warnings"].as_array().unwrap().len(), 1, "{}", json.stdout);
    assert!(!sandbox.path("runs").exists(), "no run was started");
}

#[test]
fn algorithms() {
    let sandbox = Sandbox::new();
    let mut text = sandbox.run(&["algo", "list"]).text();
    for name in ["sft", "grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] {
        let result = sandbox.run(&["algo", "show", name]);
        assert_eq!(result.code, Some(0));
        let _ = write!(text, "\n===== {name}\n{}", result.stdout);
        let json = sandbox.run(&["algo", "show", name, "--json"]);
        let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(value["method"], name);
    }
    snapshot("algorithms", &text);
}

#[test]
fn doctor_reports_no_failure() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["doctor", "--json"]);
    command.env("HF_TOKEN", "hf_verysecretverysecret");
    let result = sandbox.finished(&command.output().unwrap());
    assert_eq!(result.code, Some(0), "{}", result.text());
    assert!(!result.text().contains("verysecret"), "a token is never shown");
    let findings: Vec<serde_json::Value> =
        result.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let names: Vec<&str> = findings.iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "program",
            "system",
            "cores",
            "kernels",
            "bf16",
            "memory",
            "disk",
            "runs",
            "sandbox",
            "hub",
            "hub token",
            "hub cache",
            "exactness",
            "int8",
            "portability"
        ]
    );
    let token = findings.iter().find(|f| f["name"] == "hub token").unwrap();
    assert_eq!(token["value"], "HF_TOKEN is set");
    assert!(!sandbox.run(&["doctor"]).stdout.contains('\x1b'), "colours without a terminal");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command(&["algo", "show", "grpo"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let result = sandbox.finished(&output);
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
}
