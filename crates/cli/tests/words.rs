//! What the program says without doing any work: help, lists, refusals, dry runs. The text is a contract.

mod support;

use std::fmt::Write as _;

use support::{Place, TINY, snapshot};

#[test]
fn help() {
    let place = Place::new();
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
        let said = place.run(arguments);
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), said.whole());
    }
    snapshot("help", &text);
}

#[test]
fn usage_errors_exit_with_2() {
    let place = Place::new();
    place.write("tiny.toml", TINY);
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
        let said = place.run(arguments);
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), said.whole());
    }
    snapshot("usage", &text);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1, "nothing was begun");
}

#[test]
fn a_wrong_configuration_is_shown_with_its_lines() {
    let place = Place::new();
    place.write(
        "tiny.toml",
        &TINY.replace("hidden_size", "hidden_sise").replace("steps = 4", "steps = \"4\""),
    );
    let said = place.run(&["train", "tiny.toml", "--set", "trainer.learning_rat=1"]);
    assert_eq!(said.code, Some(2));
    snapshot("config_error", &said.whole());
    let json = place.run(&["train", "tiny.toml", "--json"]);
    assert_eq!((json.code, json.stdout.as_str()), (Some(2), ""));
    for line in json.stderr.lines() {
        let error: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(error["error"]["code"], 2);
        assert!(error["error"]["places"][0]["line"].as_u64().unwrap() > 0);
    }
    snapshot("config_error_json", &json.whole());
}

#[test]
fn a_dry_run_prints_a_configuration_that_gives_itself() {
    let place = Place::new();
    place.write("tiny.toml", TINY);
    let first =
        place.run(&["train", "tiny.toml", "--dry-run", "--set", "stage.rl.steps=9", "--run-name", "twice"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    snapshot("dry_run", &first.whole());
    place.write("resolved.toml", &first.stdout);
    let second = place.run(&["train", "resolved.toml", "--dry-run", "--quiet"]);
    assert_eq!((second.stdout, second.stderr.as_str()), (first.stdout, ""));
    let json = place.run(&["train", "tiny.toml", "--dry-run", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["config"]["stage"][1]["algorithm"]["group_size"], 2);
    assert!(value["plan"]["parameters"].as_u64().unwrap() > 1000);
    let beside = place.run(&["train", "tiny.toml", "--dry-run", "--set", "schedule.max_staleness=2"]);
    assert!(beside.stderr.contains("tokens trained on, up to 2 versions stale"), "{}", beside.stderr);
    assert!(beside.stdout.contains("[stage.algorithm.correction]"), "{}", beside.stdout);
    assert!(!place.path("runs").exists(), "nothing was begun");
}

#[test]
fn algorithms() {
    let place = Place::new();
    let mut text = place.run(&["algo", "list"]).whole();
    for name in ["sft", "grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] {
        let said = place.run(&["algo", "show", name]);
        assert_eq!(said.code, Some(0));
        let _ = write!(text, "\n===== {name}\n{}", said.stdout);
        let json = place.run(&["algo", "show", name, "--json"]);
        let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(value["method"], name);
    }
    snapshot("algorithms", &text);
}

#[test]
fn doctor_finds_this_machine_fit() {
    let place = Place::new();
    let mut command = place.command(&["doctor", "--json"]);
    command.env("HF_TOKEN", "hf_verysecretverysecret");
    let said = place.said(&command.output().unwrap());
    assert_eq!(said.code, Some(0), "{}", said.whole());
    assert!(!said.whole().contains("verysecret"), "a token is never shown");
    let findings: Vec<serde_json::Value> =
        said.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
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
            "hub",
            "hub token",
            "hub cache",
            "exactness",
            "portability"
        ]
    );
    let token = findings.iter().find(|f| f["name"] == "hub token").unwrap();
    assert_eq!(token["value"], "HF_TOKEN is set");
    assert!(!place.run(&["doctor"]).stdout.contains('\x1b'), "no colours where there is no terminal");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = Place::new();
    let mut child = place
        .command(&["algo", "show", "grpo"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = place.said(&output);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
}
