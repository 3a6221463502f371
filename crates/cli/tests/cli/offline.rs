//! Runs of pretrained models that continue without the hub, its cache or the folder of the model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::hub::{self, COMMIT};
use crate::support::{Finished, Sandbox, signal, trained};

const RECIPE: &str = r#"
[run]
seed = 3
checkpoint_every = 2
keep_every = 2
[model]
path = "org/tiny"
[data]
generator = "arithmetic"
[reward]
components = [{ kind = "random" }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "grpo"
steps = 100000
groups_per_batch = 2
[stage.algorithm]
group_size = 2
[stage.trainer]
learning_rate = 1e-2
"#;
/// The recipe as it is.
const NO_REFERENCE: &[&str] = &[];
/// The reference is the initial model.
const REFERENCE: &[&str] = &["--set", "stage.rl.algorithm.kl.coef=0.5"];

/// The folder of a model, whose generation settings are only in `config.json`.
fn model() -> Sandbox {
    let sandbox = trained();
    std::fs::rename(sandbox.path("runs/tiny/checkpoints/rl-step-000004"), sandbox.path("model")).unwrap();
    std::fs::remove_file(sandbox.path("model/generation_config.json")).unwrap();
    std::fs::remove_dir_all(sandbox.path("runs")).unwrap();
    sandbox
}

/// The model in the cache of the hub.
fn cached_model() -> Sandbox {
    let sandbox = model();
    hub::cache_model(&sandbox, "models--org--tiny", &sandbox.path("model"));
    std::fs::remove_dir_all(sandbox.path("model")).unwrap();
    sandbox
}

/// Trains `recipe.toml` without a stop.
fn train(sandbox: &Sandbox, name: &str, steps: u64, settings: &[&str]) {
    let steps = format!("stage.rl.steps={steps}");
    let arguments = [&["train", "recipe.toml", "--run-name", name, "--set", &steps], settings].concat();
    let said = sandbox.run(&arguments);
    assert_eq!(said.code, Some(0), "{}", said.text());
}

/// Trains `recipe.toml` in the run `stopped` and ends it by a signal after a few steps. Trains two more steps than those
/// without a stop in the run `whole`. Returns their number.
fn stopped(sandbox: &Sandbox, settings: &[&str]) -> u64 {
    let arguments = [&["train", "recipe.toml", "--run-name", "stopped"], settings].concat();
    let mut child = sandbox.command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.starts_with("saved checkpoints/rl-step-000002")), "no checkpoint");
    signal(&child, "-TERM");
    let rest: Vec<String> = said.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let state = sandbox.run(&["inspect", "stopped", "--json"]);
    let overview: Value = serde_json::from_str(&state.stdout).unwrap();
    let steps = overview["stages"][0]["done"].as_u64().unwrap() + 2;
    train(sandbox, "whole", steps, settings);
    steps
}

/// Resumes the run `stopped` up to `steps`, where neither the hub nor its cache can be reached.
fn resume(sandbox: &Sandbox, steps: u64) -> Finished {
    let steps = format!("stage.rl.steps={steps}");
    sandbox.run(&["train", "--resume", "stopped", "--set", &steps])
}

/// The files of a run's checkpoint at `steps`, but for the state of the run and the manifest that contains its hash.
fn checkpoint(sandbox: &Sandbox, run: &str, steps: u64) -> BTreeMap<String, Vec<u8>> {
    let folder = sandbox.path(&format!("runs/{run}/checkpoints/rl-step-{steps:06}"));
    let files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
    let files = files.into_iter().chain(["tokenizer_config.json", "trainer/optimizer.safetensors"]);
    files.map(|name| (name.to_owned(), std::fs::read(folder.join(name)).unwrap())).collect()
}

fn assert_same_end(sandbox: &Sandbox, run: &str, steps: u64) {
    let (expected, found) = (checkpoint(sandbox, "whole", steps), checkpoint(sandbox, run, steps));
    for (name, bytes) in expected {
        assert!(found[&name] == bytes, "{run}: {name}");
    }
}

fn remove_cache(sandbox: &Sandbox) {
    std::fs::remove_dir_all(sandbox.path("cache")).unwrap();
}

#[test]
fn a_run_with_a_reference_resumes_without_the_hub_and_its_cache() {
    let sandbox = cached_model();
    sandbox.write("recipe.toml", RECIPE);
    let steps = stopped(&sandbox, REFERENCE);
    let file = |path: &str| std::fs::metadata(sandbox.path(path)).unwrap().ino();
    let kept = file("runs/stopped/initial/model.safetensors");
    assert_eq!(kept, file("cache/models--org--tiny/blobs/model.safetensors"), "the weights take no space");
    assert_ne!(file("runs/stopped/initial/config.json"), file("cache/models--org--tiny/blobs/config.json"));
    let mut names: Vec<String> = std::fs::read_dir(sandbox.path("runs/stopped/initial"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected =
        ["MANIFEST", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(names, expected, "nothing but the model");
    // The reference matters.
    train(&sandbox, "free", steps, NO_REFERENCE);
    let weights = |run: &str| checkpoint(&sandbox, run, steps)["model.safetensors"].clone();
    assert!(weights("free") != weights("whole"));
    remove_cache(&sandbox);
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert_same_end(&sandbox, "stopped", steps);
}

/// A hub that cannot be reached is not asked: its answer would take a minute.
#[test]
fn a_run_without_a_reference_resumes_from_its_checkpoint_alone() {
    let sandbox = cached_model();
    sandbox.write("recipe.toml", RECIPE);
    let steps = stopped(&sandbox, NO_REFERENCE);
    assert!(!sandbox.path("runs/stopped/initial").exists(), "nothing reads the initial weights again");
    remove_cache(&sandbox);
    let more = format!("stage.rl.steps={steps}");
    let mut command = sandbox.command(&["train", "--resume", "stopped", "--set", &more]);
    command.env("HF_HUB_OFFLINE", "0").env("HF_ENDPOINT", "http://127.0.0.1:9");
    let said = sandbox.finished(&command.output().unwrap());
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert_same_end(&sandbox, "stopped", steps);
}

#[test]
fn damaged_files_of_the_initial_model_are_taken_from_the_hub_again() {
    let sandbox = cached_model();
    sandbox.write("recipe.toml", RECIPE);
    let steps = stopped(&sandbox, REFERENCE);
    let damage = || std::fs::write(sandbox.path("runs/stopped/initial/config.json"), "{}").unwrap();
    damage();
    std::fs::rename(sandbox.path("cache"), sandbox.path("gone")).unwrap();
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(1), "{}", said.text());
    let wanted = [
        "warning: the initial model in runs/stopped/initial is damaged: config.json has 2 bytes instead of "
            .to_owned(),
        format!("; opening org/tiny@{COMMIT} again"),
        format!(
            "error: runs/stopped needs its initial model: model org/tiny@{COMMIT}: not in the cache cache, and"
        ),
        "hint: stage `rl` reads the initial weights, which no checkpoint contains: make the model".to_owned(),
        "hint: unset HF_HUB_OFFLINE to download it".to_owned(),
    ];
    for wanted in &wanted {
        assert!(said.stderr.contains(wanted), "no `{wanted}` in\n{}", said.stderr);
    }
    std::fs::rename(sandbox.path("gone"), sandbox.path("cache")).unwrap();
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert!(said.stderr.contains(&wanted[0]) && said.stderr.contains(&wanted[1]), "{}", said.stderr);
    assert_same_end(&sandbox, "stopped", steps);
    // They are kept again.
    remove_cache(&sandbox);
    let said = resume(&sandbox, steps + 1);
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert!(!said.stderr.contains("damaged"), "{}", said.stderr);
}

#[test]
fn forks_and_replays_need_no_hub() {
    let sandbox = cached_model();
    sandbox.write("recipe.toml", RECIPE);
    let steps = stopped(&sandbox, REFERENCE);
    train(&sandbox, "free", 4, NO_REFERENCE);
    remove_cache(&sandbox);
    let more = format!("stage.rl.steps={steps}");
    let fork = ["train", "--resume", "stopped", "--from", "rl-step-000002", "--set", &more, "--run-name"];
    let said = sandbox.run(&[&fork[..], &["fork"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert_same_end(&sandbox, "fork", steps);
    let file = |run: &str| {
        std::fs::metadata(sandbox.path(&format!("runs/{run}/initial/model.safetensors"))).unwrap().ino()
    };
    assert_eq!(file("fork"), file("stopped"), "the weights take no space");
    // The fork does not need the run that it comes from.
    std::fs::rename(sandbox.path("runs/stopped"), sandbox.path("elsewhere")).unwrap();
    let said = sandbox.run(&["train", "--resume", "fork", "--set", &format!("stage.rl.steps={}", steps + 1)]);
    assert_eq!(said.code, Some(0), "{}", said.text());
    // Tickets 0, 2 and 4 are samples of versions 0, 1 and 2. Version 1 is retrained from version 0, with its reference.
    for (sample, version) in [("0/0", "start of the stage"), ("2/0", "retrained from version 0")] {
        let said = sandbox.run(&["replay", "whole", sample, "--rebuild"]);
        assert_eq!(said.code, Some(0), "{}", said.text());
        assert!(said.stdout.contains(version), "{}", said.stdout);
    }
    // Without a reference, checkpoints suffice for later versions.
    for sample in ["4/0", "6/0"] {
        let said = sandbox.run(&["replay", "free", sample, "--rebuild"]);
        assert_eq!(said.code, Some(0), "{}", said.text());
    }
    for arguments in [&["replay", "free", "0/0"][..], &["replay", "free", "2/0", "--rebuild"]] {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(1), "{}", said.text());
        assert!(
            said.stderr.contains("runs/free needs its initial model: model org/tiny@"),
            "{}",
            said.stderr
        );
    }
}

#[test]
fn a_run_resumes_after_the_folder_of_its_model_has_moved() {
    let sandbox = model();
    sandbox.write("recipe.toml", &RECIPE.replace("org/tiny", "model"));
    let steps = stopped(&sandbox, REFERENCE);
    std::fs::rename(sandbox.path("model"), sandbox.path("moved")).unwrap();
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert_same_end(&sandbox, "stopped", steps);
    // The recipe, which still has the relative path, continues the run.
    let more = format!("stage.rl.steps={}", steps + 1);
    let auto = ["train", "recipe.toml", "--run-name", "stopped", "--set", "run.resume=auto", "--set", &more];
    let said = sandbox.run(&[&auto[..], REFERENCE].concat());
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert!(said.stderr.contains(&format!("resumed from rl-step-{steps:06}")), "{}", said.stderr);
    std::fs::remove_dir_all(sandbox.path("runs/stopped/initial")).unwrap();
    let said = resume(&sandbox, steps + 2);
    assert_eq!(said.code, Some(1), "{}", said.text());
    let wanted = "error: runs/stopped needs its initial model: HERE/model: no such folder";
    assert!(said.stderr.contains(wanted), "{}", said.stderr);
}

/// Weights that a program has written in place change in both folders.
#[test]
fn a_model_that_has_changed_is_refused() {
    let sandbox = model();
    sandbox.write("recipe.toml", &RECIPE.replace("org/tiny", "model"));
    let steps = stopped(&sandbox, REFERENCE);
    let weights = sandbox.path("model/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(1), "{}", said.text());
    for wanted in [
        "error: runs/stopped/initial is damaged, and HERE/model/model.safetensors differs from the model that",
        "hint: restore the file, or remove runs/stopped/initial to continue with the model as it is now",
    ] {
        assert!(said.stderr.contains(wanted), "no `{wanted}` in\n{}", said.stderr);
    }
    // Follows the hint of `RunError::InitialModelChanged`.
    std::fs::remove_dir_all(sandbox.path("runs/stopped/initial")).unwrap();
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert!(sandbox.path("runs/stopped/initial/MANIFEST").is_file(), "the model is kept from now on");
}

#[test]
fn a_run_without_a_checkpoint_says_that_it_needs_its_model() {
    let sandbox = cached_model();
    sandbox.write("recipe.toml", RECIPE);
    train(&sandbox, "stopped", 2, NO_REFERENCE);
    remove_checkpoints(&sandbox.path("runs/stopped/checkpoints"));
    let [cache, away] = ["cache", "away"].map(|name| sandbox.path(name));
    std::fs::rename(&cache, &away).unwrap();
    let said = resume(&sandbox, 4);
    assert_eq!(said.code, Some(1), "{}", said.text());
    for wanted in [
        "error: runs/stopped needs its initial model: model org/tiny@",
        "hint: the run has no checkpoint yet: make the model available again",
        "hint: unset HF_HUB_OFFLINE to download it",
    ] {
        assert!(said.stderr.contains(wanted), "no `{wanted}` in\n{}", said.stderr);
    }
    // Follows the hint of `RunError::InitialModelMissing`.
    std::fs::rename(&away, &cache).unwrap();
    let said = resume(&sandbox, 4);
    assert_eq!(said.code, Some(0), "{}", said.text());
}

fn remove_checkpoints(folder: &Path) {
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::create_dir(folder).unwrap();
}

/// Data of the hub is read from its cache, at the commit of the run.
#[test]
fn data_of_the_hub_is_read_from_the_cache() {
    let sandbox = cached_model();
    sandbox.write("recipe.toml", &RECIPE.replace("generator = \"arithmetic\"", "path = \"hf:org/sums\""));
    let rows = b"{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"1+2=\", \"answer\": 3}\n";
    hub::cache_file(&sandbox, "datasets--org--sums", "train.jsonl", rows);
    let steps = stopped(&sandbox, REFERENCE);
    std::fs::remove_dir_all(sandbox.path("cache/models--org--tiny")).unwrap();
    let said = resume(&sandbox, steps);
    assert_eq!(said.code, Some(0), "{}", said.text());
    assert_same_end(&sandbox, "stopped", steps);
    remove_cache(&sandbox);
    let said = resume(&sandbox, steps + 1);
    assert_eq!(said.code, Some(1), "{}", said.text());
    for wanted in [
        format!("error: data set org/sums@{COMMIT}: not in the cache cache, and HF_HUB_OFFLINE is set"),
        "hint: unset HF_HUB_OFFLINE to download it".to_owned(),
    ] {
        assert!(said.stderr.contains(&wanted), "no `{wanted}` in\n{}", said.stderr);
    }
}
