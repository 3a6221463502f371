//! Loss on held-out rows: when it is measured, what it changes, and the checkpoint that it chooses. Noise on embeddings.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use rloom_config::Config;
use rloom_run::{ResumeOptions, StopFlag};
use rloom_store::checkpoint::BestScore;
use rloom_telemetry::{Event, EventLine, Metrics, Observer, read_events};

use crate::learning::config;

const SFT: &str = r#"
[model.new]
layers = 1
hidden_size = 32
heads = 2
intermediate_size = 64
max_positions = 64

[data]
generator = "arithmetic"
max_digits = 2
style = "worked"

[run]
name = "tiny"
checkpoint_every = 3

[validation]
every = 2
rows = 20

[[stage]]
name = "sft"
method = "sft"
steps = 5
groups_per_batch = 8

[stage.trainer]
learning_rate = 1e-2
micro_batch_tokens = 64
"#;

/// Recipes of stages that learn from preferences, in a tiny form.
const PREFERENCES: [(&str, &str); 2] = [
    (include_str!("../../../../recipes/dpo.toml"), "dpo"),
    (include_str!("../../../../recipes/kto.toml"), "kto"),
];

/// Metrics, number of rows and verdict of each validation, by step.
fn validations(config: &Config, stage: &str) -> BTreeMap<u64, (Metrics, u64, bool)> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_stage = lines.into_iter().filter(|line| line.stage == stage);
    let validation = |line: EventLine| match line.event {
        Event::Validation { metrics, rows, best, .. } => Some((line.step, (metrics, rows, best))),
        _ => None,
    };
    of_stage.filter_map(validation).collect()
}

fn weights(config: &Config, checkpoint: &str) -> Vec<u8> {
    let folder = config.run_directory().join("checkpoints").join(checkpoint);
    ["model.safetensors", "trainer/optimizer.safetensors"]
        .map(|file| std::fs::read(folder.join(file)).unwrap())
        .concat()
}

fn train(text: &str, directory: &Path, overrides: &[&str]) -> (Config, rloom_run::Summary) {
    let config = config(text, directory, overrides);
    let summary = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    (config, summary)
}

struct StopAt(u64, StopFlag);

impl Observer for StopAt {
    fn observe(&mut self, line: &EventLine) {
        if line.step == self.0 && matches!(line.event, Event::Step { .. }) && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

#[test]
fn the_first_the_last_and_every_nth_version_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    let (config, summary) = train(SFT, folder.path(), &[]);
    let found = validations(&config, "sft");
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 2, 4, 5]);
    assert!(found.values().all(|(_, rows, _)| *rows == 20));
    let losses: Vec<f64> = found.values().map(|(metrics, ..)| metrics["validation/loss"]).collect();
    assert!(losses[0] > 2.5 && losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    assert!(found.values().all(|(.., best)| *best), "each is lower than the one before");

    // The best version is saved, though 2 and 4 are not multiples of 3, and kept.
    let best = summary.best.unwrap();
    assert_eq!((best.score, best.step), (BestScore::ValidationLoss(losses[3]), 5));
    let link = config.run_directory().join("checkpoints/best");
    assert_eq!(std::fs::read_link(link).unwrap(), Path::new("sft-step-000005"));

    // It changes nothing about the training, and its rows are those that are not trained on.
    let (plain, summary) = train(SFT, &folder.path().join("plain"), &["validation.every=0"]);
    assert!(validations(&plain, "sft").is_empty() && summary.best.is_none());
    let last = "sft-step-000005";
    assert!(weights(&config, last) == weights(&plain, last), "other weights without validation");

    // Another division into micro-batches and other threads have the same losses.
    let (other, _) = train(
        SFT,
        &folder.path().join("other"),
        &["stage.sft.trainer.micro_batch_tokens=1000", "run.threads=2"],
    );
    let first = &validations(&other, "sft")[&0].0;
    assert_eq!(first["validation/loss"].to_bits(), losses[0].to_bits());
}

#[test]
fn a_version_that_is_not_the_last_can_be_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let overrides = ["stage.sft.trainer.learning_rate=0.2", "stage.sft.steps=4", "validation.every=1"];
    let (config, summary) = train(SFT, folder.path(), &overrides);
    let found = validations(&config, "sft");
    let losses: Vec<f64> = found.values().map(|(metrics, ..)| metrics["validation/loss"]).collect();
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let step = losses.iter().position(|loss| *loss == least).unwrap();
    assert!(step < 4, "a learning rate that is far too large: {losses:?}");
    let best = summary.best.unwrap();
    assert_eq!((best.score, best.step), (BestScore::ValidationLoss(least), step as u64));
    let mut lowest = f64::INFINITY;
    for (metrics, _, is_best) in found.values() {
        let loss = metrics["validation/loss"];
        assert_eq!(*is_best, loss < lowest);
        lowest = lowest.min(loss);
    }
}

/// The best version so far is part of a checkpoint.
#[test]
fn a_resumed_run_has_the_same_validations() {
    for more in [&[][..], &["stage.sft.algorithm.neftune_noise_alpha=10.0"]] {
        let folder = tempfile::tempdir().unwrap();
        let (whole, _) = train(SFT, &folder.path().join("whole"), more);
        let broken = config(SFT, &folder.path().join("broken"), more);
        let stop = StopFlag::default();
        assert!(rloom_run::train(&broken, &mut StopAt(3, stop.clone()), &stop).unwrap().interrupted);
        let before = validations(&broken, "sft").into_keys().collect::<Vec<_>>();
        assert_eq!(before, [0, 2]);
        let directory = broken.run_directory();
        let resumed =
            rloom_run::resume(&directory, &broken, ResumeOptions::default(), &mut (), &StopFlag::default());
        assert_eq!(resumed.unwrap().best.unwrap().step, 5);
        assert_eq!(validations(&broken, "sft"), validations(&whole, "sft"));
        let last = "sft-step-000005";
        assert!(weights(&whole, last) == weights(&broken, last), "other weights after a resume");
    }
}

/// Noise depends on the sequence alone: other threads and, but for rounding, other micro-batches have the same.
#[test]
fn noise_is_in_the_training_alone() {
    let folder = tempfile::tempdir().unwrap();
    let noisy = "stage.sft.algorithm.neftune_noise_alpha=10.0";
    let of = |name: &str, more: &[&str]| {
        let name = format!("run.name={name}");
        let (config, _) = train(SFT, folder.path(), &[&[name.as_str()], more].concat());
        let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
        let loss = lines.into_iter().find_map(|line| match line.event {
            Event::Step { metrics } => Some(metrics["loss"]),
            _ => None,
        });
        (
            validations(&config, "sft")[&0].0["validation/loss"],
            loss.unwrap(),
            weights(&config, "sft-step-000005"),
        )
    };
    let (plain, with_noise) = (of("plain", &[]), of("noisy", &[noisy]));
    assert_eq!(plain.0.to_bits(), with_noise.0.to_bits(), "validation has none");
    assert!((plain.1 - with_noise.1).abs() > 1e-3, "{} {}", plain.1, with_noise.1);
    assert!(plain.2 != with_noise.2);
    let other = of("threads", &[noisy, "run.threads=2"]);
    assert!((other.1, &other.2) == (with_noise.1, &with_noise.2), "other threads, other bytes");
    let split = of("split", &[noisy, "stage.sft.trainer.micro_batch_tokens=20"]);
    assert_eq!(split.1.to_bits(), with_noise.1.to_bits(), "the loss of the first step");
    assert_ne!(of("seed", &[noisy, "run.seed=1"]).1, with_noise.1);
}

#[test]
fn preferences_are_validated() {
    for (recipe, stage) in PREFERENCES {
        let folder = tempfile::tempdir().unwrap();
        let prefix = format!("stage.{stage}");
        let mut overrides: Vec<String> = ["steps=3", "groups_per_batch=4", "validation={every=2,rows=10}"]
            .map(|own| format!("{prefix}.{own}"))
            .into();
        overrides.extend(
            ["stage.warmup.steps=1", "model.new.layers=1", "model.new.hidden_size=32", "eval.tasks=1"]
                .map(str::to_owned),
        );
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let (config, summary) = train(recipe, folder.path(), &overrides);
        let found = validations(&config, stage);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 2, 3], "{stage}");
        let (first, rows, best) = &found[&0];
        let value = if stage == "dpo" { std::f64::consts::LN_2 } else { 0.5 };
        assert!((first["validation/loss"] - value).abs() < 1e-6, "{stage}: {first:?}");
        assert_eq!(*rows, 10);
        // The recipe evaluates, and accuracies take precedence.
        assert!(!best && matches!(summary.best.unwrap().score, BestScore::Accuracy(_)), "{stage}");
        let last = &found[&3].0;
        assert!(last.contains_key("validation/rewards/chosen") && last["validation/loss"] != value);
        assert_eq!(last.contains_key("validation/rewards/accuracies"), stage == "dpo");
    }
}
