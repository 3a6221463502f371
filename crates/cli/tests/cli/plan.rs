//! `rloom plan`: output for a recipe, for other hardware, and for a profile fitted to a run.

use std::fmt::Write as _;

use crate::support::{Sandbox, TINY, snapshot, without_memory};

#[test]
fn a_recipe_is_planned() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let mut text = String::new();
    let cases: [&[&str]; 3] = [
        &["plan", "tiny.toml", "--sweep", "--svg", "frontier.svg"],
        &["plan", "tiny.toml", "--profile", "node-8xH100", "--set", "schedule.max_staleness=1"],
        &[
            "plan",
            "tiny.toml",
            "--devices",
            "4",
            "--rollout-devices",
            "3",
            "--steps",
            "20",
            "--lengths",
            "tail:0.1",
            "--set",
            "schedule.max_staleness=2",
            "--set",
            "schedule.oversample=2",
            "--set",
            "schedule.cut_order=completion",
        ],
    ];
    for arguments in cases {
        let result = sandbox.run(arguments);
        assert_eq!(result.code, Some(0), "{}", result.stderr);
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), result.text());
    }
    snapshot("plan", &without_memory(&text));
    let picture = std::fs::read_to_string(sandbox.path("frontier.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("alternating"));
    assert!(!sandbox.path("runs").exists(), "no run was started");
}

#[test]
fn json_output_is_complete() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let result = sandbox.run(&["plan", "tiny.toml", "--sweep", "--json", "--devices", "3"]);
    let value: serde_json::Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(value["stage"], "rl");
    let frontier = value["frontier"].as_array().unwrap();
    // Shared, and two splits of three cores with five bounds each.
    assert_eq!(frontier.len(), 1 + 2 * 5);
    let speed = |choice: &serde_json::Value| choice["report"]["steps_per_hour"].as_f64().unwrap();
    let recommended = &value["recommended"];
    let fresh = frontier.iter().filter(|c| c["max_staleness"].as_u64().unwrap() <= 4);
    let fastest = fresh.map(speed).fold(0.0, f64::max);
    assert!(speed(recommended) >= 0.98 * fastest);
    let ends = &value["configured"]["report"]["ends"];
    assert_eq!(ends["trained"], value["configured"]["report"]["steps"].as_u64().unwrap() * 2);
    let again = sandbox.run(&["plan", "tiny.toml", "--sweep", "--json", "--devices", "3"]);
    assert_eq!(again.stdout, result.stdout, "the output is deterministic");
}

#[test]
fn invalid_requests_are_rejected() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    sandbox.write("half.toml", "about = 'no speeds'\ndevices = 1\n");
    let cases: [&[&str]; 7] = [
        &["plan"],
        &["plan", "tiny.toml", "--profile", "abacus"],
        &["plan", "tiny.toml", "--profile", "half.toml"],
        &["plan", "tiny.toml", "--stage", "warmup"],
        &["plan", "tiny.toml", "--stage", "none"],
        &["plan", "tiny.toml", "--rollout-devices", "2"],
        &["plan", "tiny.toml", "--lengths", "tail:2"],
    ];
    let mut text = String::new();
    for arguments in cases {
        let result = sandbox.run(arguments);
        assert_eq!(result.code, Some(2), "{arguments:?}: {}", result.text());
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), result.text());
    }
    snapshot("plan_refused", &text);
}

#[test]
fn a_run_calibrates_a_profile() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let trained = sandbox.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let result = sandbox.run(&["plan", "--calibrate", "tiny", "--save-profile", "fitted.toml", "--json"]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    let value: serde_json::Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(value["calibration"]["steps"], 3, "four steps, without the first");
    let measured = &value["profile"]["speeds"]["measured"];
    assert!(measured["train_tokens_per_second"].as_f64().unwrap() > 0.0);
    // Lengths are read from the rollouts and have at most four tokens.
    let lengths = value["profile"]["workload"]["turn_tokens"].as_object().unwrap();
    assert!(lengths.contains_key("values") || lengths.contains_key("value"));
    let from_file = sandbox.run(&["plan", "tiny.toml", "--profile", "fitted.toml", "--json"]);
    let again: serde_json::Value = serde_json::from_str(&from_file.stdout).unwrap();
    assert_eq!(again["configured"], value["configured"], "the saved profile equals the fitted one");
    let text = sandbox.run(&["plan", "--calibrate", "tiny"]);
    assert!(text.stdout.contains("fitted to   3 steps"), "{}", text.stdout);
}
