//! Runs that train on the recorded rollouts of another run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use miette::Diagnostic;
use rloom_run::{RunError, StopFlag};
use rloom_telemetry::{Event, read_events, rollout_log};

use crate::recipe;

/// Random rewards: each group has a gradient.
const REWARD: &str = "reward.components=[{kind='exact'}, {kind='random'}]";

fn train(directory: &Path, overrides: &[&str]) -> Result<(), RunError> {
    let config = recipe::config(directory, &[overrides, &[REWARD]].concat());
    rloom_run::train(&config, &mut (), &StopFlag::default()).map(drop)
}

fn weights(run: &Path, step: u64) -> Vec<u8> {
    std::fs::read(run.join(format!("checkpoints/rl-step-{step:06}/model.safetensors"))).unwrap()
}

/// The log-probabilities of the recorded run are those of these weights, so the corrections for an inexact sampler are 1.
#[test]
fn the_same_recipe_on_recorded_rollouts_gives_the_same_weights() {
    let [recorded, again] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    train(recorded.path(), &["stage.rl.steps=3"]).unwrap();
    let source = recipe::config(recorded.path(), &[]).run_directory();
    let rollouts = format!("run.rollouts='{}'", source.display());
    train(again.path(), &["stage.rl.steps=3", &rollouts]).unwrap();
    let run = recipe::config(again.path(), &[]).run_directory();
    assert!(weights(&run, 3) == weights(&source, 3));
    for step in 1..=3 {
        let file = format!("rollouts/rl-step-{step:06}.jsonl.zst");
        let [was, is] = [&source, &run].map(|run| rollout_log::read(&run.join(&file)).unwrap());
        assert_eq!(was.len(), is.len());
        assert!(was.iter().zip(&is).all(|(was, is)| was.episodes == is.episodes), "step {step}");
    }
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let sampled = events.iter().any(|line| matches!(line.event, Event::Evaluation { .. }));
    assert!(!sampled, "nothing is evaluated without a sampler");
    // Other weights would have been reached by a larger learning rate.
    let other = tempfile::tempdir().unwrap();
    train(other.path(), &["stage.rl.steps=3", "stage.rl.trainer.learning_rate=0.07", &rollouts]).unwrap();
    assert!(weights(&recipe::config(other.path(), &[]).run_directory(), 3) != weights(&source, 3));
}

#[test]
fn rollouts_that_do_not_fit_are_refused_and_the_hint_helps() {
    let [recorded, again] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    train(recorded.path(), &["stage.rl.steps=2"]).unwrap();
    let source = recipe::config(recorded.path(), &[]).run_directory();
    let rollouts = format!("run.rollouts='{}'", source.display());
    let refused = |overrides: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let error = train(directory.path(), &[overrides, &[rollouts.as_str()]].concat()).unwrap_err();
        (error.to_string(), error.help().map(|help| help.to_string()).unwrap_or_default())
    };
    let setting = |hint: &str| hint.trim_start_matches("set `").trim_end_matches('`').replace(' ', "");
    // CollectError::NotRecorded
    let (error, hint) = refused(&["stage.rl.steps=5"]);
    assert!(error.contains("has no rollouts of step 3 of stage `rl`"), "{error}");
    let steps = setting(&hint);
    assert_eq!(steps, "stage.rl.steps=2");
    // CollectError::OtherBatch
    let (error, hint) = refused(&["stage.rl.steps=2", "stage.rl.algorithm.group_size=2"]);
    assert!(error.contains("`algorithm.group_size = "), "{error}");
    assert!(hint.contains("set `stage.rl.algorithm.group_size = "), "{hint}");
    train(again.path(), &[&steps, "stage.rl.algorithm.group_size=2", &setting(&hint), &rollouts]).unwrap();
}
