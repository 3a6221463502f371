//! Every method on the embedded engines: it runs, the identities of its first step hold, and an interrupted run ends in the
//! same bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use crate::recipe;
use rloom_algo::{Algorithm, Method};
use rloom_config::Config;
use rloom_run::{ResumeOptions, StopFlag};
use rloom_telemetry::{Event, EventLine, Observer, read_events};

/// Rewards that need no skill, so that groups have contrast from the first step.
const SHORT: [&str; 9] = [
    "reward.components=[{kind='random'}]",
    "eval.tasks=1",
    "eval.reward.components=[{kind='exact'}]",
    "stage.warmup.steps=1",
    "stage.warmup.groups_per_batch=4",
    "stage.rl.steps=2",
    "stage.rl.groups_per_batch=4",
    "run.checkpoint_every=1",
    "stage.rl.trainer.micro_batch_tokens=64",
];

/// A game of several turns against an opponent that plays at random, for methods with step rewards.
const STEPS: [&str; 6] = [
    "model.new.max_positions=160",
    "data={generator='tic_tac_toe'}",
    "environment={kind='tic_tac_toe'}",
    "reward.components=[{kind='environment'}]",
    "eval.reward.components=[{kind='environment'}]",
    "sampling.max_new_tokens=4",
];

fn config(directory: &Path, method: Method, more: &[&str]) -> Config {
    let chosen = format!("stage.rl.method={method}");
    let mut overrides: Vec<&str> = SHORT.to_vec();
    if method == Method::Gigpo {
        overrides.extend(STEPS);
    }
    overrides.push(&chosen);
    overrides.extend(more);
    recipe::config(directory, &overrides)
}

/// Stops after the first step of a stage.
struct StopEarly(&'static str, StopFlag);

impl Observer for StopEarly {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == self.0 && matches!(line.event, Event::Step { .. }) && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

/// Files of the last checkpoint.
fn files(config: &Config) -> BTreeMap<String, Vec<u8>> {
    let last = config.run_directory().join("checkpoints/rl-step-000002");
    let mut found = BTreeMap::new();
    collect(&last, &last, &mut found);
    found
}

fn collect(root: &Path, folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, found);
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(name, std::fs::read(&path).unwrap());
        }
    }
}

/// Metrics of each step of the RL stage.
fn steps(config: &Config) -> Vec<BTreeMap<String, f64>> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    lines
        .into_iter()
        .filter_map(|line| match line.event {
            Event::Step { metrics } if line.stage == "rl" => Some(metrics),
            _ => None,
        })
        .collect()
}

fn check(method: Method, more: &[&str]) -> Vec<BTreeMap<String, f64>> {
    check_stopped_in("rl", method, more)
}

fn check_stopped_in(stage: &'static str, method: Method, more: &[&str]) -> Vec<BTreeMap<String, f64>> {
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = config(whole.path(), method, more);
    rloom_run::train(&undisturbed, &mut (), &StopFlag::default()).unwrap();

    let broken = tempfile::tempdir().unwrap();
    let interrupted = config(broken.path(), method, more);
    let stop = StopFlag::default();
    let summary = rloom_run::train(&interrupted, &mut StopEarly(stage, stop.clone()), &stop).unwrap();
    assert!(summary.interrupted, "{method}");
    rloom_run::resume(
        &interrupted.run_directory(),
        &interrupted,
        ResumeOptions::default(),
        &mut (),
        &StopFlag::default(),
    )
    .unwrap();
    assert!(files(&undisturbed) == files(&interrupted), "{method}: another result after a resume");

    let (again, steps) = (steps(&interrupted), steps(&undisturbed));
    assert_eq!(steps.len(), 2, "{method}");
    for (a, b) in again.iter().zip(&steps) {
        let lasting = |m: &BTreeMap<String, f64>| {
            let prefixes = ["time/", "tokens_per_second/", "rollout/"];
            let timed = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
            m.iter().filter(|(name, _)| !timed(name)).map(|(n, v)| (n.clone(), *v)).collect::<Vec<_>>()
        };
        assert_eq!(lasting(a), lasting(b), "{method}: other metrics after a resume");
    }
    for metrics in &steps {
        for (name, value) in metrics {
            assert!(value.is_finite(), "{method}: {name} is {value}");
        }
        assert_eq!(metrics["mismatch/max_abs"], 0.0, "{method}");
    }
    steps
}

#[test]
fn every_method_runs_and_resumes_to_the_same_bytes() {
    for &method in Method::ALL.iter().filter(|m| !m.is_supervised()) {
        let steps = check(method, &[]);
        if Algorithm::preset(method).unwrap().loss.surrogate.reads_old() {
            // With one optimiser step per batch the policy is still the one that sampled.
            for metrics in &steps {
                assert_eq!((metrics["ratio/min"], metrics["ratio/max"]), (1.0, 1.0), "{method}");
            }
        }
    }
}

#[test]
fn several_optimiser_steps_per_batch_move_the_ratio() {
    for method in [Method::Grpo, Method::Gspo, Method::ClipCov, Method::Ppo, Method::DecoupledPpo] {
        let more = ["stage.rl.algorithm.epochs=2", "stage.rl.algorithm.minibatches=2"];
        let steps = check(method, &more);
        assert!(steps.iter().all(|m| m["ratio/max"] > 1.0), "{method}");
    }
}

/// Critic and reward model then start from a policy that was read from a checkpoint.
#[test]
fn an_interrupted_warm_up_does_not_change_the_result() {
    for method in [Method::Ppo, Method::Prime] {
        check_stopped_in("warmup", method, &[]);
    }
}

/// A new critic predicts zero. A new process-reward model equals its reference, so its cross-entropy is ln 2.
#[test]
fn new_critics_and_reward_models_have_the_expected_losses() {
    let ppo = check(Method::Ppo, &[]);
    assert!(ppo[0]["value/explained_variance"].abs() < 1e-9, "{}", ppo[0]["value/explained_variance"]);
    assert!(ppo[0]["value/loss"] > 0.0 && ppo[0]["value/grad_norm"] > 0.0);
    let prime = check(Method::Prime, &[]);
    assert!((prime[0]["prm/loss"] - std::f64::consts::LN_2).abs() < 1e-6, "{}", prime[0]["prm/loss"]);
}

#[test]
fn a_shared_backbone_trains_values_and_policy_together() {
    let steps = check(Method::Ppo, &["stage.rl.algorithm.critic.backbone=shared"]);
    assert!(steps[0]["value/loss"] > 0.0);
    assert!(!steps[0].contains_key("value/grad_norm"), "there is one gradient");
}

/// While the critic warms up, the policy does not change.
#[test]
fn a_critic_warm_up_leaves_the_policy_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), Method::Ppo, &["stage.rl.algorithm.critic.warmup_batches=2"]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let model = |folder: &str| {
        std::fs::read(config.run_directory().join("checkpoints").join(folder).join("model.safetensors"))
            .unwrap()
    };
    assert!(model("rl-step-000002") == model("warmup-step-000001"));
    let steps = steps(&config);
    assert!(steps.iter().all(|m| m["value/grad_norm"] > 0.0 && !m.contains_key("grad_norm")));
}

/// The state that an algorithm carries from batch to batch survives an interruption.
#[test]
fn running_statistics_and_adaptive_weights_are_resumed() {
    let more = [
        "stage.rl.algorithm.advantage={kind='normalized',mean_from='running',std_from='running'}",
        "stage.rl.algorithm.kl={coef=0.1,placement='reward',target=0.01,horizon=20.0}",
        "stage.rl.algorithm.entropy_control={target=9.0}",
    ];
    let steps = check(Method::Grpo, &more);
    assert!(steps[1]["reward_kl_penalty_coeff"] != steps[0]["reward_kl_penalty_coeff"]);
    assert_eq!((steps[0]["entropy_coef"], steps[1]["entropy_coef"]), (0.0, 0.005));
}

/// ReMax compares samples with the greedy completion.
#[test]
fn the_baseline_episode_is_greedy() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), Method::Remax, &["sampling.temperature=0.5"]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let file = std::fs::File::open(config.run_directory().join("rollouts/rl-step-000001.jsonl.zst")).unwrap();
    let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
    let mut roles = BTreeMap::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let role = line["role"].as_str().unwrap().to_owned();
        // Greedy log-probabilities are those at temperature 1.
        let temperature = if role == "baseline" { 1.0 } else { 0.5 };
        let policy = line["spans"].as_array().unwrap().iter().filter(|s| s["author"] == "policy");
        assert!(policy.clone().all(|s| s["temperature"] == temperature), "{line}");
        *roles.entry(role).or_insert(0) += 1;
    }
    assert_eq!(roles["train"], 4 * roles["baseline"], "four samples and one greedy episode per group");
}

/// Speculation does not change samples, and its metrics are reported only if it is enabled.
#[test]
fn drafted_tokens_are_reported_if_rollouts_speculate() {
    let directory = tempfile::tempdir().unwrap();
    let [without, with] = ["off", "ngram"].map(|speculation| {
        let chosen = format!("rollout.speculation={speculation}");
        // Cold and long enough for the text to repeat itself.
        let more = [
            &chosen,
            "sampling.temperature=0.02",
            "sampling.max_new_tokens=80",
            "model.new.max_positions=128",
        ];
        let config = config(&directory.path().join(speculation), Method::Grpo, &more);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        (steps(&config), files(&config))
    });
    assert_eq!(without.1, with.1);
    let names = ["rollout/drafted_tokens", "rollout/accepted_tokens"];
    assert!(without.0.iter().all(|metrics| names.iter().all(|&name| !metrics.contains_key(name))));
    let mut total_accepted = 0.0;
    for metrics in &with.0 {
        let [drafted, accepted] = names.map(|name| metrics[name]);
        assert!((0.0..=drafted).contains(&accepted), "{drafted} drafted, {accepted} accepted");
        total_accepted += accepted;
    }
    assert!(total_accepted > 0.0);
}

/// At least the first state of each game occurs in every episode of a group.
#[test]
fn steps_from_the_same_state_are_compared() {
    let steps = check(Method::Gigpo, &[]);
    assert!(steps.iter().all(|m| m["frac_states_seen_once"] < 1.0));
}

/// Groups without contrast are replaced until the batch is full; metrics and errors count them.
#[test]
fn dynamic_sampling_replaces_groups_without_contrast() {
    let rarely = "reward.components=[{kind='random',probability=0.1}]";
    let punished = check(Method::Dapo, &[]);
    assert!(punished.iter().all(|m| m["reward/overlong"] < 0.0));
    let steps = check(Method::Dapo, &[rarely, "stage.rl.algorithm.overlong.factor=0.0"]);
    for metrics in &steps {
        assert!(metrics["filtered/equal_outcomes"] > 0.0);
        assert_eq!(metrics["frac_reward_zero_std"], 0.0);
    }
    let directory = tempfile::tempdir().unwrap();
    let never = "reward.components=[{kind='random',probability=0.0}]";
    let config = config(directory.path(), Method::Dapo, &[never, "stage.rl.algorithm.filter.max_draws=3"]);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err().to_string();
    // Of three batches of four groups, nine are replaced: fewer than a batch are left.
    assert!(error.contains("3 batches' worth") && error.contains("9 equal_outcomes"), "{error}");
}

/// Ties have no pair. Each batch has as many pairs as groups.
#[test]
fn groups_with_tied_rewards_are_replaced() {
    let more = ["stage.rl.algorithm.group_size=2", "eval.every=1000"];
    let steps = check(Method::OnlineDpo, &more);
    assert!(steps.iter().filter_map(|m| m.get("filtered/tied_rewards")).sum::<f64>() > 0.0);
    for metrics in &steps {
        assert!(metrics["rewards/accuracies"] <= 1.0 && metrics.contains_key("logps/chosen"));
    }
    assert!((steps[0]["loss"] - std::f64::consts::LN_2).abs() < 1e-6, "{}", steps[0]["loss"]);
    let directory = tempfile::tempdir().unwrap();
    let never = "reward.components=[{kind='random',probability=0.0}]";
    let config = config(directory.path(), Method::OnlineDpo, &[never, more[0]]);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err().to_string();
    assert!(error.contains("tied_rewards") && error.contains("10 batches' worth"), "{error}");
}

/// The losses of pairs, the largest groups and several optimiser steps on samples of older policies.
#[test]
fn pairs_of_samples_train_with_any_loss_of_pairs() {
    for (loss, more) in [
        ("ipo", "schedule.max_staleness=0"),
        ("{kind='aot',paired=false}", "stage.rl.algorithm.minibatches=2"),
        ("{kind='dpo',beta=0.5}", "stage.rl.algorithm.epochs=2"),
        ("simpo", "stage.rl.algorithm.filter.mask_truncated=true"),
    ] {
        let loss = format!("stage.rl.algorithm.preference={loss}");
        check(Method::OnlineDpo, &["stage.rl.algorithm.group_size=4", &loss, more]);
    }
}
