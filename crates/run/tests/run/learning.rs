//! Reinforcement learning raises the accuracy on held-out tasks, and does not if the sign of the reward is flipped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use rloom_config::Config;
use rloom_run::StopFlag;
use rloom_telemetry::{Event, read_events};

/// The main recipe; tests run it with fewer reinforcement-learning steps.
const RECIPE: &str = include_str!("../../../../recipes/arithmetic.toml");

const SHORT: [&str; 4] =
    ["stage.rl.steps=30", "eval.every=30", "stage.warmup.eval_every=0", "stage.warmup.steps=500"];

/// Held-out accuracy before and after the reinforcement-learning stage, and the number of tasks.
pub(crate) fn accuracies(config: &Config) -> (f64, f64, f64) {
    rloom_run::train(config, &mut (), &StopFlag::default()).unwrap();
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let found: Vec<(f64, f64)> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Evaluation { metrics, tasks, .. } if line.stage == "rl" => {
                Some((metrics["eval/accuracy"], *tasks as f64))
            }
            _ => None,
        })
        .collect();
    (found[0].0, found[found.len() - 1].0, found[0].1)
}

pub(crate) fn config(text: &str, directory: &Path, overrides: &[&str]) -> Config {
    let parent = format!("run.directory={}", directory.display());
    let all: Vec<&str> = std::iter::once(parent.as_str()).chain(overrides.iter().copied()).collect();
    match Config::from_text("arithmetic.toml", text, &all) {
        Ok(config) => config,
        Err(errors) => panic!("{errors}"),
    }
}

/// The recipe without its warm-up, starting from a model that has had it.
fn from_model(folder: &Path) -> String {
    let (head, rest) = RECIPE.split_once("[model.new]").unwrap();
    let (_, rest) = rest.split_once("[data]").unwrap();
    let (shared, stages) = rest.split_once("[[stage]]").unwrap();
    let (_, rl) = stages.split_once("[[stage]]").unwrap();
    format!("{head}[model]\npath = '{}'\n\n[data]{shared}[[stage]]{rl}", folder.display())
}

/// One-sided two-proportion z: the difference of `after` and `before` in standard errors.
pub(crate) fn z(before: f64, after: f64, n: f64) -> f64 {
    let pooled = f64::midpoint(before, after);
    (after - before) / (2.0 * pooled * (1.0 - pooled) / n).sqrt()
}

/// p < 1e-3, one-sided.
pub(crate) const SIGNIFICANT: f64 = 3.090;

/// Methods of different kinds (group baseline, sequence ratio, critic, process-reward model) and an adapter: a name, the
/// method, and overrides of the recipe.
const METHODS: [(&str, &str, &[&str]); 5] = [
    ("grpo", "grpo", &[]),
    (
        "adapter",
        "grpo",
        &["stage.rl.trainer.lora={rank=8,alpha=16.0}", "stage.rl.trainer.learning_rate=3e-3"],
    ),
    ("gspo", "gspo", &[]),
    ("ppo", "ppo", &["stage.rl.groups_per_batch=256", "stage.rl.algorithm.group_size=1"]),
    ("prime", "prime", &[]),
];

#[test]
fn accuracy_rises_unless_the_reward_is_flipped() {
    let directory = tempfile::tempdir().unwrap();
    let warmup =
        config(RECIPE, directory.path(), &[SHORT[2], SHORT[3], "stage.rl.steps=1", "eval.every=1000"]);
    rloom_run::train(&warmup, &mut (), &StopFlag::default()).unwrap();
    let warm = from_model(&warmup.run_directory().join("checkpoints/warmup-step-000500"));
    for (case, method, more) in METHODS {
        let chosen = format!("stage.rl.method={method}");
        let train = |name: &str, flipped: &[&str]| {
            let name = format!("run.name={case}-{name}");
            let overrides = [&[chosen.as_str(), &name, SHORT[0], SHORT[1]], more, flipped].concat();
            accuracies(&config(&warm, directory.path(), &overrides))
        };
        let (before, after, n) = train("learns", &[]);
        assert!(z(before, after, n) > SIGNIFICANT, "{case}: {before} → {after} on {n} tasks");
        if case == "grpo" {
            // bf16 starts and ends like f32, within statistical error.
            let (start, other, n) = train("bf16", &["model.dtype=bf16"]);
            assert!(z(start, other, n) > SIGNIFICANT, "bf16: {start} → {other} on {n} tasks");
            let difference = z(other, after, n).abs();
            assert!(difference <= SIGNIFICANT, "bf16 ends at {other}, f32 at {after}, on {n} tasks");
            // So does a run whose samples come from weights of 8 bits.
            let (start, other, n) = train("int8", &["rollout.quantize=int8"]);
            assert!(z(start, other, n) > SIGNIFICANT, "int8: {start} → {other} on {n} tasks");
            let difference = z(other, after, n).abs();
            assert!(difference <= SIGNIFICANT, "int8 ends at {other}, f32 at {after}, on {n} tasks");
        }
        // The same start with the opposite sign of the reward, and so of the advantage.
        let (start, after, n) = train(
            "flipped",
            &["reward.components=[{kind='numeric',extract=['hashes','whole'],weight=-1.0}]"],
        );
        assert_eq!(start, before, "the warm start is the same");
        assert!(z(start, after, n) <= SIGNIFICANT, "{case}, flipped: {start} → {after} on {n} tasks");
    }
}
