//! Exactness: sampled log-probabilities are bitwise those that training computes, and runs are reproducible.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::recipe;
use rloom_core::{Author, Trajectory};
use rloom_model::{Dtype, Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use rloom_run::StopFlag;
use rloom_telemetry::{Event, read_events};
use serde::Deserialize;

#[derive(Deserialize)]
struct Line {
    #[serde(flatten)]
    trajectory: Trajectory,
}

/// Trajectories that a step was trained on.
pub(crate) fn rollouts(run: &Path, step: u64) -> Vec<Trajectory> {
    let path = run.join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
    let bytes = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap().trajectory).collect()
}

/// Scores trajectories from their token ids alone, `per_batch` of them in a packed forward pass, and returns the
/// largest difference from the sampler's log-probabilities.
pub(crate) fn largest_difference(
    model: &Model,
    trajectories: &[Trajectory],
    per_batch: usize,
    threads: usize,
) -> f32 {
    let ctx = Ctx::new(threads).unwrap();
    let mut largest = 0.0f32;
    for some in trajectories.chunks(per_batch) {
        let mut tokens = Vec::new();
        let mut seq_starts = vec![0];
        let mut rows = Vec::new();
        for t in some {
            rows.extend(t.policy_ranges().flatten().map(|i| (tokens.len() + i) as u32));
            tokens.extend_from_slice(&t.tokens);
            seq_starts.push(tokens.len());
        }
        let inv_temperature = vec![1.0 / some[0].spans[1].temperature; rows.len()];
        let packed = PackedTokens { tokens: &tokens, seq_starts: &seq_starts, parents: &[] };
        let rows = ScoreRows { rows: &rows, inv_temperature: &inv_temperature };
        let scores = model.score(&ctx, &packed, &rows).unwrap();
        let sampled = some.iter().flat_map(|t| &t.logprobs);
        for (a, b) in scores.logprob.iter().zip(sampled) {
            largest = largest.max((a - b).abs());
        }
    }
    largest
}

#[test]
fn sampled_and_recomputed_log_probabilities_are_bitwise_identical() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        check_log_probabilities(dtype);
    }
}

fn check_log_probabilities(dtype: Dtype) {
    let directory = tempfile::tempdir().unwrap();
    let chosen = format!("model.dtype={}", dtype.name());
    let overrides =
        ["run.checkpoint_every=1", "stage.rl.algorithm.minibatches=2", "sampling.temperature=0.7", &chosen];
    let config = recipe::config(directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let run = config.run_directory();
    let mut compared = 0;
    for step in 2..=6 {
        // Step n is sampled with the weights of step n − 1.
        let model = Model::load(&run.join(format!("checkpoints/rl-step-{:06}", step - 1))).unwrap();
        let model = model.with_dtype(dtype);
        let trajectories = rollouts(&run, step);
        assert_eq!(trajectories.len(), 24);
        for (per_batch, threads) in [(1, 1), (5, 2), (24, 2), (24, 3)] {
            let difference = largest_difference(&model, &trajectories, per_batch, threads);
            assert_eq!(difference, 0.0, "{}, step {step}", dtype.name());
        }
        compared += trajectories.iter().map(Trajectory::policy_tokens).sum::<usize>();
    }
    assert!(compared > 200, "{compared} tokens");

    // The run measures the same at every step.
    let measured: Vec<f64> = read_events(&run.join("events.jsonl"))
        .unwrap()
        .iter()
        .filter_map(|line| match &line.event {
            Event::Step { metrics } if line.stage == "rl" => Some(metrics["mismatch/max_abs"]),
            _ => None,
        })
        .collect();
    assert_eq!(measured, [0.0; 6]);
}

/// The turns of a game are one sequence. Observations are not trained on, and the log-probabilities of all turns are those
/// of a forward pass over the whole sequence.
#[test]
fn several_turns_are_bitwise_exact() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [
        "run.checkpoint_every=1",
        "model.new.max_positions=48",
        "data={generator='guess'}",
        "environment={kind='guess',max_turns=4}",
        "reward.components=[{kind='environment'}]",
        "sampling={max_new_tokens=4,temperature=0.9}",
        "stage.warmup.steps=30",
        "stage.rl.steps=3",
    ];
    let config = recipe::config(directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let run = config.run_directory();
    let (mut longest, mut observed, mut states) = (0, 0, BTreeSet::new());
    for step in 1..=3 {
        let name = if step == 1 { "warmup-step-000030".into() } else { format!("rl-step-{:06}", step - 1) };
        let model = Model::load(&run.join("checkpoints").join(name)).unwrap();
        let trajectories = rollouts(&run, step);
        for (per_batch, threads) in [(1, 1), (24, 2)] {
            assert_eq!(largest_difference(&model, &trajectories, per_batch, threads), 0.0, "step {step}");
        }
        for t in &trajectories {
            t.validate().unwrap();
            let turns = t.policy_ranges().count();
            assert_eq!(t.steps().count(), turns, "every turn has a step");
            states.extend(t.steps().map(|s| s.state.clone().unwrap()));
            longest = longest.max(turns);
            observed += t.spans.iter().filter(|s| s.author == Author::Environment).count();
        }
    }
    assert!(longest == 4 && observed > 100 && states.len() > 10, "{longest} {observed} {states:?}");
    let lines = read_events(&run.join("events.jsonl")).unwrap();
    let steps = lines.iter().filter(|line| line.stage == "rl").filter_map(|line| match &line.event {
        Event::Step { metrics } => Some(metrics),
        _ => None,
    });
    for (metrics, step) in steps.zip(1..) {
        assert_eq!(metrics["mismatch/max_abs"], 0.0);
        let trajectories = rollouts(&run, step);
        let rewards: f64 = trajectories.iter().flat_map(Trajectory::steps).map(|s| s.reward).sum();
        assert!((metrics["reward"] - rewards / trajectories.len() as f64).abs() < 1e-12);
    }
}

#[test]
fn later_minibatches_and_epochs_clip() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [
        "stage.rl.algorithm.minibatches=2",
        "stage.rl.algorithm.epochs=3",
        "stage.rl.trainer.learning_rate=2e-2",
        // Gives every group contrast.
        "reward.components=[{kind='random'},{kind='exact'}]",
    ];
    let config = recipe::config(directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let clipped: f64 = read_events(&config.run_directory().join("events.jsonl"))
        .unwrap()
        .iter()
        .filter_map(|line| match &line.event {
            Event::Step { metrics } if line.stage == "rl" => {
                Some(metrics["clip_ratio/low"] + metrics["clip_ratio/high"])
            }
            _ => None,
        })
        .sum();
    assert!(clipped > 0.0);
}

/// Files of the last checkpoint.
fn final_model(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let latest = run.join("checkpoints/rl-step-000006");
    ["model.safetensors", "config.json", "tokenizer.json", "trainer/optimizer.safetensors"]
        .into_iter()
        .map(|name| (name.to_owned(), std::fs::read(latest.join(name)).unwrap()))
        .collect()
}

#[test]
fn a_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let run = |overrides: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let config = recipe::config(directory.path(), overrides);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        final_model(&config.run_directory())
    };
    let reference = run(&[]);
    assert!(reference == run(&[]));
    assert!(reference == run(&["run.threads=1"]));
    assert!(
        reference
            == run(&["run.threads=3", "rollout.lanes=2", "rollout.max_batch=3", "rollout.prefill_chunk=2"])
    );
    assert!(reference != run(&["run.seed=4"]));
}
