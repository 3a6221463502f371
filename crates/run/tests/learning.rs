//! Reinforcement learning learns: accuracy on held-out tasks rises, and does not when the advantage's sign is flipped.

mod recipe;

use rloom_run::{Event, StopFlag, read_events};

/// Held-out accuracy before and after the reinforcement-learning stage, and the number of tasks.
fn accuracies(reward: &str) -> (f64, f64, f64) {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [
        reward,
        "stage.warmup.steps=150",
        "stage.warmup.batch=32",
        "stage.rl.steps=60",
        "stage.rl.batch=16",
        "stage.rl.algorithm.group_size=8",
        "data.max_digits=1",
        "data.held_out=pairs",
        "eval.every=60",
        "eval.tasks=400",
        "run.checkpoint_every=0",
    ];
    let config = recipe::config(directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
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

/// One-sided two-proportion z: how far `after` lies above `before`, in standard errors.
fn z(before: f64, after: f64, n: f64) -> f64 {
    let pooled = f64::midpoint(before, after);
    (after - before) / (2.0 * pooled * (1.0 - pooled) / n).sqrt()
}

/// p < 1e-3, one-sided.
const SIGNIFICANT: f64 = 3.090;

#[test]
fn accuracy_rises_and_not_with_the_sign_flipped() {
    let (before, after, n) = accuracies("reward.components=[{kind='exact',weight=1.0}]");
    assert!(z(before, after, n) > SIGNIFICANT, "{before} → {after} on {n} tasks");
    let (before, after, n) = accuracies("reward.components=[{kind='exact',weight=-1.0}]");
    assert!(z(before, after, n) <= SIGNIFICANT, "flipped: {before} → {after} on {n} tasks");
}
