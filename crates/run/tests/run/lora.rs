//! Runs that train an adapter.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use rloom_config::Config;
use rloom_core::Trajectory;
use rloom_model::{Dtype, GenerationConfig, Model};
use rloom_run::{RunError, StopFlag};
use rloom_telemetry::{Event, read_events};

use crate::exactness::{largest_difference, rollouts};
use crate::recipe;

const LORA: &str =
    "stage.rl.trainer.lora={rank=4,alpha=16.0,targets=['q_proj','v_proj','o_proj','up_proj','down_proj']}";

/// Rewards that give every group contrast.
const REWARD: &str = "reward.components=[{kind='random'},{kind='exact'}]";

fn train(directory: &Path, overrides: &[&str]) -> Result<Config, RunError> {
    let config = recipe::config(directory, overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default())?;
    Ok(config)
}

/// Values of a metric in the steps of the stage `rl`.
fn metric(config: &Config, name: &str) -> Vec<f64> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let value = |event: &Event| match event {
        Event::Step { metrics } => metrics.get(name).copied(),
        _ => None,
    };
    lines.iter().filter(|line| line.stage == "rl").filter_map(|line| value(&line.event)).collect()
}

/// The sampler's log-probabilities are those of a forward pass with base and adapter from the checkpoint, bit by bit; the
/// reference is the base; the base stays as it is and is not saved again.
#[test]
fn adapters_are_sampled_and_trained_with_the_same_bits() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let directory = tempfile::tempdir().unwrap();
        let chosen = format!("model.dtype={}", dtype.name());
        let config = train(
            directory.path(),
            &[
                LORA,
                REWARD,
                &chosen,
                "run.checkpoint_every=1",
                "stage.rl.algorithm.minibatches=2",
                "stage.rl.algorithm.kl.coef=0.1",
                "stage.rl.trainer.learning_rate=1e-2",
                "sampling.temperature=0.7",
            ],
        )
        .unwrap();
        let run = config.run_directory();
        let base = run.join("checkpoints/warmup-step-000004");
        for step in 2..=6 {
            let folder = run.join(format!("checkpoints/rl-step-{:06}", step - 1));
            assert!(!folder.join("model.safetensors").exists());
            assert_eq!(
                Model::base_of(&folder).unwrap().unwrap().canonicalize().unwrap(),
                base.canonicalize().unwrap()
            );
            let model = Model::load_frozen(&folder, dtype).unwrap();
            let trajectories = rollouts(&run, step);
            for (per_batch, threads) in [(1, 1), (24, 2)] {
                let difference = largest_difference(&model, &trajectories, per_batch, threads);
                assert_eq!(difference, 0.0, "{}, step {step}", dtype.name());
            }
            assert!(largest_difference(&model.without_adapter(), &trajectories, 24, 1) > 0.0);
            assert!(trajectories.iter().map(Trajectory::policy_tokens).sum::<usize>() > 24);
        }
        assert_eq!(metric(&config, "mismatch/max_abs"), [0.0; 6]);
        let kl = metric(&config, "kl");
        assert!(kl[5] > 1e-3, "{kl:?}");
    }
}

/// A stage continues the adapter of the stage before, and its reference is that adapter as it was.
#[test]
fn a_stage_continues_an_adapter() {
    let directory = tempfile::tempdir().unwrap();
    let pretrained = train(directory.path(), &["stage.rl.steps=1", "run.name=base"]).unwrap();
    let base = pretrained.run_directory().join("checkpoints/warmup-step-000004");
    let path = format!("model.path={}", base.display());
    let lora = "trainer.lora={rank=4}";
    let kl = "stage.rl.algorithm.kl.coef=0.1";
    let text = crate::recipe::without_model();
    let parent = format!("run.directory={}", directory.path().display());
    let overrides = [parent.as_str(), &path, lora, kl, REWARD, "run.checkpoint_every=2", "run.name=both"];
    let config =
        Config::from_text("tiny.toml", &text, &overrides).map_err(|errors| errors.to_string()).unwrap();
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let run = config.run_directory();
    let kl = metric(&config, "kl");
    assert!(kl[0].abs() < 1e-6 && kl[5] > 0.0, "{kl:?}");
    // The base of all adapters is the copy that the run keeps.
    for checkpoint in ["warmup-step-000004", "rl-step-000006"] {
        let folder = run.join("checkpoints").join(checkpoint);
        let found = Model::base_of(&folder).unwrap().unwrap();
        assert_eq!(found.canonicalize().unwrap(), run.join("initial").canonicalize().unwrap());
    }
    // Also after the run was moved.
    let moved = directory.path().join("moved");
    fs::rename(&run, &moved).unwrap();
    let last = Model::load(&moved.join("checkpoints/rl-step-000006")).unwrap();
    let first = Model::load(&moved.join("checkpoints/warmup-step-000004")).unwrap();
    assert!(first.trained_tensors().zip(last.trained_tensors()).any(|((_, a), (_, b))| a != b));
    // All weights are trained from a merged export alone.
    let adapter = moved.join("checkpoints/rl-step-000006");
    let path = format!("model.path={}", adapter.display());
    let overrides = [parent.as_str(), &path, "run.name=full"];
    let config =
        Config::from_text("tiny.toml", &text, &overrides).map_err(|errors| errors.to_string()).unwrap();
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    assert!(matches!(error, RunError::AdapterStart { .. }), "{error}");
    // An adapter is continued with its own settings.
    let continued = |name: &str, lora: &str| {
        let overrides = [parent.as_str(), &path, name, lora, "stage.rl.steps=1"];
        let config = Config::from_text("tiny.toml", &text, &overrides).map_err(|errors| errors.to_string());
        rloom_run::train(&config.unwrap(), &mut (), &StopFlag::default())
    };
    let error = continued("run.name=other", "trainer.lora={rank=8}").unwrap_err();
    assert!(matches!(error, RunError::OtherAdapter { .. }), "{error}");
    continued("run.name=same", "trainer.lora={rank=4}").unwrap();
    // DoRA, which is merged when it is read, does not become a base unnoticed.
    let settings = adapter.join("adapter_config.json");
    let plain = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, plain.replace("\"use_dora\": false", "\"use_dora\": true")).unwrap();
    let error = continued("run.name=dora", "trainer.lora={rank=4}").unwrap_err();
    assert!(matches!(error, RunError::DoraStart { .. }), "{error}");
    fs::write(&settings, plain).unwrap();
    let merged = directory.path().join("export");
    fs::create_dir(&merged).unwrap();
    last.merged().save(&merged, &GenerationConfig::default()).unwrap();
    rloom_text::Tokenizer::load(&adapter).unwrap().save(&merged).unwrap();
    let path = format!("model.path={}", merged.display());
    let overrides = [parent.as_str(), &path, "run.name=merged", "stage.rl.steps=1"];
    let config =
        Config::from_text("tiny.toml", &text, &overrides).map_err(|errors| errors.to_string()).unwrap();
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
}

/// Every method of another kind trains an adapter: with a critic of its own or on the adapted backbone, and with a process-reward
/// model.
#[test]
fn methods_with_further_models_train_an_adapter() {
    let own = "stage.rl.algorithm.critic.backbone=own";
    let shared = "stage.rl.algorithm.critic.backbone=shared";
    for (method, more) in [("ppo", own), ("ppo", shared), ("prime", LORA), ("reinforce_pp", LORA)] {
        let directory = tempfile::tempdir().unwrap();
        let chosen = format!("stage.rl.method={method}");
        let overrides = [LORA, &chosen, more, "stage.rl.steps=2", "eval.every=100"];
        let config = train(directory.path(), &overrides).unwrap();
        assert_eq!(metric(&config, "mismatch/max_abs"), [0.0; 2], "{method}");
    }
}
