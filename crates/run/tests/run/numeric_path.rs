//! The order of bf16 products of a run: recorded when it starts, kept when it is resumed and replayed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::recipe;
use rloom_config::Config;
use rloom_hub::Hub;
use rloom_model::{Dtype, NumericPath};
use rloom_ops::{Ctx, Order};
use rloom_run::{ResumeOptions, StopFlag, Verdict};
use rloom_store::checkpoint::CheckpointState;
use rloom_telemetry::{Event, read_events};

const BF16: &str = "model.dtype=bf16";

fn train(directory: &Path, overrides: &[&str]) -> Config {
    let config = recipe::config(directory, overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    config
}

/// The configuration that the run records.
fn recorded(run: &Path, overrides: &[&str]) -> Config {
    Config::load(&[run.join("config.toml")], overrides).map_err(|errors| errors.to_string()).unwrap()
}

fn resume(run: &Path, overrides: &[&str]) {
    let options = ResumeOptions::default();
    rloom_run::resume(run, &recorded(run, overrides), options, &mut (), &StopFlag::default()).unwrap();
}

fn checkpoint(run: &Path, step: u64) -> std::path::PathBuf {
    run.join(format!("checkpoints/rl-step-{step:06}"))
}

fn weights(run: &Path, step: u64) -> Vec<u8> {
    std::fs::read(checkpoint(run, step).join("model.safetensors")).unwrap()
}

/// Turns a run into one of a version that recorded the path in checkpoints alone.
fn forget_setting(run: &Path) {
    let path = run.join("config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("numeric_path")).collect();
    assert_eq!(lines.len() + 1, text.lines().count(), "{text}");
    std::fs::write(path, lines.join("\n")).unwrap();
}

#[test]
fn a_run_records_the_processors_order() {
    let directory = tempfile::tempdir().unwrap();
    let run = train(directory.path(), &[BF16, "stage.rl.steps=1"]).run_directory();
    let order = Ctx::serial().order();
    assert_eq!(recorded(&run, &[]).numeric_path.order(), Some(order));
    let name = Dtype::Bf16.numeric_path(&Ctx::serial());
    assert_eq!(CheckpointState::load(&checkpoint(&run, 1)).unwrap().numeric_path, name);
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let named =
        |event: &Event| matches!(event, Event::RunStarted { numeric_path, .. } if numeric_path == name);
    assert!(events.iter().any(|line| named(&line.event)));
}

/// In f32 there is one order: nothing is recorded.
#[test]
fn a_run_in_f32_records_none() {
    let directory = tempfile::tempdir().unwrap();
    let run = train(directory.path(), &["stage.rl.steps=1"]).run_directory();
    assert_eq!(recorded(&run, &[]).numeric_path, NumericPath::Auto);
    assert!(!std::fs::read_to_string(run.join("config.toml")).unwrap().contains("numeric_path"));
}

#[test]
fn runs_are_resumed_and_replayed_in_their_order() {
    let orders = [("widened", Order::Widened), ("dot_pairs", Order::DotPairs)];
    let [first, second] = orders.map(|(name, order)| {
        let [short, long] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let set = format!("model.numeric_path={name}");
        let long = train(long.path(), &[BF16, &set, "stage.rl.steps=3"]).run_directory();
        let short = train(short.path(), &[BF16, &set, "stage.rl.steps=1"]).run_directory();
        assert_eq!(recorded(&short, &[]).numeric_path.order(), Some(order));
        resume(&short, &["stage.rl.steps=2"]);
        forget_setting(&short);
        resume(&short, &["stage.rl.steps=3"]);
        assert!(weights(&short, 3) == weights(&long, 3), "{name}");
        for run in [&short, &long] {
            let (config, hub) = (recorded(run, &[]), Arc::new(Hub::from_env()));
            let sample = "rl/13/1".parse().unwrap();
            let replay = rloom_run::replay(run, &config, &sample, &hub, true, &mut |_, _| {}).unwrap();
            assert_eq!(replay.verdict, Verdict::Equal, "{name}");
        }
        weights(&long, 3)
    });
    assert!(first != second, "the orders round differently");
}

#[test]
fn samples_from_before_and_after_a_change_of_order_are_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let set = [BF16, "model.numeric_path=widened", "stage.rl.steps=2"];
    let run = train(directory.path(), &set).run_directory();
    resume(&run, &["model.numeric_path=dot_pairs", "stage.rl.steps=4"]);
    let (config, hub) = (recorded(&run, &[]), Arc::new(Hub::from_env()));
    assert_eq!(config.numeric_path, NumericPath::DotPairs);
    let mut versions = BTreeSet::new();
    for ticket in 0..16 {
        let sample = format!("rl/{ticket}/1").parse().unwrap();
        let replay = rloom_run::replay(&run, &config, &sample, &hub, true, &mut |_, _| {}).unwrap();
        assert_eq!(replay.verdict, Verdict::Equal, "{ticket}: {replay:?}");
        versions.extend(replay.versions.keys().copied());
    }
    assert_eq!(Vec::from_iter(versions), [0, 1, 2], "the order changed at version 2");
}

#[test]
fn an_order_that_the_processor_lacks_leaves_no_run_behind() {
    if Ctx::serial().isa().orders().any(|order| order == Order::Tiles) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &[BF16, "model.numeric_path=tiles"]);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    assert!(error.to_string().contains("bf16 products in tiles are not available"), "{error}");
    assert!(!config.run_directory().exists());
}
