//! Rollouts from weights of 8 bits: runs repeat bit by bit, samples are replayed, and losses correct for the sampler.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::exactness::{largest_difference, rollouts};
use crate::recipe;
use rloom_config::Config;
use rloom_hub::Hub;
use rloom_model::{Dtype, Model};
use rloom_ops::Ctx;
use rloom_run::{Origin, Replay, ResumeOptions, StopFlag, Verdict};
use rloom_telemetry::{Event, read_events};

const INT8: &str = "rollout.quantize=int8";
const WEIGHT: &str = "correction/weight_mean";
/// Rewards that differ within every group, so that every batch changes the weights.
const CONTRAST: &str = "reward.components=[{kind='random'},{kind='exact'}]";

fn train(directory: &Path, overrides: &[&str]) -> Config {
    let config = recipe::config(directory, overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    config
}

/// Metrics of each step of reinforcement learning.
fn steps(config: &Config) -> Vec<BTreeMap<String, f64>> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let steps = lines.into_iter().filter(|line| line.stage == "rl").filter_map(|line| match line.event {
        Event::Step { metrics } => Some(metrics.into_iter().collect()),
        _ => None,
    });
    steps.collect()
}

fn weights(config: &Config, step: u64) -> Vec<u8> {
    std::fs::read(config.run_directory().join(format!("checkpoints/rl-step-{step:06}/model.safetensors")))
        .unwrap()
}

fn replay(config: &Config, sample: &str, rebuild: bool) -> Replay {
    let run = config.run_directory();
    let hub = Arc::new(Hub::from_env());
    rloom_run::replay(&run, config, &sample.parse().unwrap(), &hub, rebuild, &mut |_, _| {}).unwrap()
}

/// The sampler's log-probabilities are those of the quantized weights, bit by bit; those of the trainer differ, are measured
/// on every step, and weight the loss.
#[test]
fn the_sampler_is_quantized_and_the_loss_corrects_for_it() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let directory = tempfile::tempdir().unwrap();
        let chosen = format!("model.dtype={}", dtype.name());
        let overrides = ["run.checkpoint_every=1", "sampling.temperature=0.7", CONTRAST, &chosen];
        let config = train(directory.path(), &[&overrides[..], &[INT8]].concat());
        for step in 2..=6 {
            let folder = config.run_directory().join(format!("checkpoints/rl-step-{:06}", step - 1));
            let model = Model::load(&folder).unwrap().with_dtype(dtype);
            let quantized = model.quantized(&Ctx::serial());
            let trajectories = rollouts(&config.run_directory(), step);
            assert_eq!(largest_difference(&quantized, &trajectories, 5, 2), 0.0, "{dtype:?}, step {step}");
            let difference = largest_difference(&model, &trajectories, 5, 2);
            let measured = steps(&config)[step as usize - 1]["mismatch/max_abs"];
            assert!(difference > 0.0 && difference < 0.2, "{difference}");
            assert!((measured - f64::from(difference)).abs() < 1e-6, "{measured} for {difference}");
        }
        // Truncated importance weights of the recomputed log-probabilities, as with any sampler that is not exact.
        for metrics in steps(&config) {
            let weight = metrics[WEIGHT];
            assert!(weight != 1.0 && (weight - 1.0).abs() < 0.1, "{weight}");
        }
        let plain = train(&directory.path().join("plain"), &overrides);
        assert!(steps(&plain).iter().all(|metrics| metrics["mismatch/max_abs"] == 0.0));
        assert!(steps(&plain).iter().all(|metrics| !metrics.contains_key(WEIGHT)));
        assert_ne!(weights(&config, 6), weights(&plain, 6));
    }
}

/// Two runs are equal, as is one that was stopped and resumed; lanes and threads change nothing.
#[test]
fn quantized_runs_repeat_bit_by_bit() {
    let directory = tempfile::tempdir().unwrap();
    let first = train(&directory.path().join("first"), &[INT8, CONTRAST]);
    let other = ["rollout.lanes=1", "rollout.max_batch=5", "rollout.speculation=ngram", "run.threads=1"];
    let second = train(&directory.path().join("second"), &[&[INT8, CONTRAST][..], &other].concat());
    assert_eq!(weights(&first, 6), weights(&second, 6));
    let stopped = train(&directory.path().join("third"), &[INT8, CONTRAST, "stage.rl.steps=2"]);
    let run = stopped.run_directory();
    let longer = Config::load(&[run.join("config.toml")], &["stage.rl.steps=6"]).unwrap();
    let options = ResumeOptions::default();
    rloom_run::resume(&run, &longer, options, &mut (), &StopFlag::default()).unwrap();
    assert_eq!(weights(&first, 6), weights(&stopped, 6));
}

#[test]
fn samples_of_quantized_weights_are_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let config = train(directory.path(), &[INT8, CONTRAST, "run.checkpoint_every=1"]);
    for (sample, version) in [("rl/1/0", 0), ("rl/13/2", 2), ("rl/30/3", 5)] {
        let found = replay(&config, sample, false);
        assert_eq!(found.verdict, Verdict::Equal, "{sample}");
        assert!(found.versions.contains_key(&version), "{sample}: {:?}", found.versions);
    }
}

/// Versions without a checkpoint are trained again with the corrections of the run.
#[test]
fn versions_of_quantized_runs_are_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [INT8, CONTRAST, "run.keep_every=0", "run.keep_last=1", "eval.every=100"];
    let config = train(directory.path(), &overrides);
    let rebuilt = replay(&config, "19/2", true);
    assert_eq!(rebuilt.verdict, Verdict::Equal);
    assert_eq!(rebuilt.versions, BTreeMap::from([(3, Origin::Rebuilt { from: 0 })]));
}

/// Weights change while completions are in flight: every token is that of its version.
#[test]
fn versions_in_flight_are_quantized_too() {
    for on_update in ["finish", "recompute", "keep"] {
        let directory = tempfile::tempdir().unwrap();
        let chosen = format!("schedule.on_update={on_update}");
        let overrides = [INT8, CONTRAST, "schedule.max_staleness=2", &chosen];
        let config = train(directory.path(), &overrides);
        assert!(steps(&config).iter().all(|metrics| metrics["mismatch/kl"].is_finite()), "{on_update}");
    }
}

/// An adapter stays in full precision over a base that is quantized.
#[test]
fn adapters_are_sampled_over_a_quantized_base() {
    let directory = tempfile::tempdir().unwrap();
    let lora = "stage.rl.trainer.lora={rank=4,alpha=16.0}";
    let faster = "stage.rl.trainer.learning_rate=1e-2";
    let config = train(directory.path(), &[INT8, CONTRAST, lora, faster, "run.checkpoint_every=1"]);
    let folder = config.run_directory().join("checkpoints/rl-step-000003");
    let model = Model::load_frozen(&folder, Dtype::F32).unwrap();
    let trajectories = rollouts(&config.run_directory(), 4);
    assert_eq!(largest_difference(&model.quantized(&Ctx::serial()), &trajectories, 5, 2), 0.0);
    assert!(largest_difference(&model, &trajectories, 5, 2) > 0.0);
    assert_eq!(replay(&config, "rl/20/1", false).verdict, Verdict::Equal);
}
