//! Stages that learn from preferences: they resume to the same bytes, and learn what they are told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use rloom_config::Config;
use rloom_run::{ResumeOptions, StopFlag};
use rloom_telemetry::{Event, EventLine, Observer, read_events};

use crate::learning::config;

pub(crate) const DPO: &str = include_str!("../../../../recipes/dpo.toml");
pub(crate) const KTO: &str = include_str!("../../../../recipes/kto.toml");

/// A tiny form of a recipe with another method.
pub(crate) fn tiny(directory: &Path, recipe: &str, stage: &str, method: &str, more: &[&str]) -> Config {
    let prefix = format!("stage.{stage}");
    let mut overrides: Vec<String> =
        ["warmup.steps=1", "warmup.groups_per_batch=4"].map(|own| format!("stage.{own}")).into();
    overrides.extend(
        ["model.new.layers=1", "model.new.hidden_size=32", "eval.tasks=1", "run.checkpoint_every=1"]
            .map(str::to_owned),
    );
    overrides.extend(
        ["steps=3", "groups_per_batch=4", "trainer.micro_batch_tokens=64"]
            .map(|own| format!("{prefix}.{own}")),
    );
    overrides.push(format!("{prefix}.method={method}"));
    overrides.push(format!("{prefix}.algorithm={{}}"));
    overrides.extend(more.iter().map(|own| format!("{prefix}.{own}")));
    let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    config(recipe, directory, &overrides)
}

/// Metrics of each step of a stage.
pub(crate) fn steps(config: &Config, stage: &str) -> Vec<BTreeMap<String, f64>> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_step = |line: EventLine| match line.event {
        Event::Step { metrics } if line.stage == stage => Some(metrics),
        _ => None,
    };
    lines.into_iter().filter_map(of_step).collect()
}

pub(crate) struct StopEarly(pub(crate) &'static str, pub(crate) StopFlag);

impl Observer for StopEarly {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == self.0 && matches!(line.event, Event::Step { .. }) && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

pub(crate) fn weights(config: &Config, stage: &str) -> Vec<u8> {
    let last = config.run_directory().join(format!("checkpoints/{stage}-step-000003"));
    let files =
        ["model.safetensors", "model.low_bits", "adapter_model.safetensors", "trainer/optimizer.safetensors"];
    let present = files.into_iter().filter(|file| last.join(file).exists());
    let bytes: Vec<Vec<u8>> = present.map(|file| std::fs::read(last.join(file)).unwrap()).collect();
    assert!(bytes.len() > 1);
    bytes.concat()
}

/// Pairs, labels, both anchors and a loss over the step.
#[test]
fn stages_resume_to_the_same_bytes() {
    const DROPOUT: &[&str] = &["trainer.lora={rank=4,dropout=0.2}"];
    for (recipe, stage, method, more) in [
        (DPO, "dpo", "dpo", &[][..]),
        (DPO, "dpo", "orpo", &[]),
        (DPO, "dpo", "aot", &[]),
        (KTO, "kto", "kto", &[]),
        (KTO, "kto", "bco", &[]),
        (DPO, "dpo", "dpo", DROPOUT),
        // A loss over the step scores the same masks twice.
        (DPO, "dpo", "aot", DROPOUT),
        (DPO, "dpo", "dpo", &["trainer.moments='int8'", "trainer.save_dtype='bf16'"]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let whole = tiny(&directory.path().join("whole"), recipe, stage, method, more);
        rloom_run::train(&whole, &mut (), &StopFlag::default()).unwrap();
        let broken = tiny(&directory.path().join("broken"), recipe, stage, method, more);
        let stop = StopFlag::default();
        assert!(rloom_run::train(&broken, &mut StopEarly(stage, stop.clone()), &stop).unwrap().interrupted);
        let options = ResumeOptions::default();
        rloom_run::resume(&broken.run_directory(), &broken, options, &mut (), &StopFlag::default()).unwrap();
        assert!(weights(&whole, stage) == weights(&broken, stage), "{method}: other weights after a resume");
        let (steps, again) = (steps(&whole, stage), steps(&broken, stage));
        assert_eq!(steps.len(), 3, "{method}");
        for (step, again) in steps.iter().zip(&again) {
            for name in ["loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen"] {
                assert_eq!(step[name].to_bits(), again[name].to_bits(), "{method}: {name}");
            }
        }
        let first = match method {
            "dpo" | "aot" | "bco" => Some(std::f64::consts::LN_2),
            "kto" => Some(0.5),
            _ => None,
        };
        if let Some(value) = first {
            assert!((steps[0]["loss"] - value).abs() < 1e-6, "{method}: {}", steps[0]["loss"]);
        }
        if method == "bco" {
            assert!(steps[2]["rewards/anchor"] != steps[1]["rewards/anchor"], "the mean runs on");
        }
    }
}

/// Batches do not repeat, so that each measures pairs that were not trained on before. Where the sign of the loss is broken the
/// accuracy falls below a half.
#[test]
fn preferences_are_learned() {
    for (recipe, stage) in [(DPO, "dpo"), (KTO, "kto")] {
        let directory = tempfile::tempdir().unwrap();
        let mut short: Vec<String> = ["steps=40", "groups_per_batch=8", "trainer.learning_rate=1e-3"]
            .map(|own| format!("stage.{stage}.{own}"))
            .into();
        short.extend(["model.new.layers=1", "model.new.hidden_size=32", "eval.tasks=1"].map(str::to_owned));
        short.extend(["stage.warmup.steps=2", "run.checkpoint_every=100"].map(str::to_owned));
        let short: Vec<&str> = short.iter().map(String::as_str).collect();
        let config = config(recipe, directory.path(), &short);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        let steps = steps(&config, stage);
        let mean = |name: &str| steps[30..].iter().map(|step| step[name]).sum::<f64>() / 10.0;
        assert!(mean("rewards/margins") > 0.5, "{stage}: {}", mean("rewards/margins"));
        assert!(mean("loss") < 0.9 * steps[0]["loss"], "{stage}: {}", mean("loss"));
        if stage == "dpo" {
            assert!(mean("rewards/accuracies") > 0.9, "{}", mean("rewards/accuracies"));
        }
    }
}

/// With an adapter the reference is the base: before the first step both score alike, so that no pair is preferred. Dropout masks
/// the policy alone.
#[test]
fn the_reference_of_an_adapter_is_its_base() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, lora: &str| {
        let config = tiny(&directory.path().join(name), DPO, "dpo", "dpo", &[lora]);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        steps(&config, "dpo")
    };
    let plain = run("plain", "trainer.lora={rank=4}");
    let first = |steps: &[BTreeMap<String, f64>], name: &str| steps[0][name];
    assert!((first(&plain, "loss") - std::f64::consts::LN_2).abs() < 1e-6, "{:?}", plain[0]);
    // `B` is zero, so that masks of the inputs of `A` change nothing yet; then they do.
    let masked = run("masked", "trainer.lora={rank=4,dropout=0.5}");
    assert_eq!(first(&masked, "loss"), first(&plain, "loss"));
    assert_ne!(masked[2]["loss"], plain[2]["loss"]);
}

/// A model that writes characters at random learns to write a 7 or a 9 from pairs of its own samples, and learns not to where the
/// reward has the opposite sign.
#[test]
fn pairs_of_samples_are_learned() {
    let last = |weight: &str| {
        let directory = tempfile::tempdir().unwrap();
        let components = format!("reward.components=[{{kind='regex',pattern='[79]',weight={weight}}}]");
        let overrides = [
            "model.new.layers=1",
            "stage.warmup.steps=1",
            "stage.rl.method=online_dpo",
            "stage.rl.algorithm={group_size=4,filter={max_draws=100}}",
            "stage.rl.steps=30",
            "stage.rl.groups_per_batch=8",
            "stage.rl.trainer.learning_rate=3e-3",
            "eval.every=1000",
            "eval.tasks=1",
            "eval.reward.components=[{kind='exact'}]",
            "run.checkpoint_every=100",
            &components,
        ];
        let config = crate::recipe::config(directory.path(), &overrides);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        let steps = steps(&config, "rl");
        let mean = |steps: &[BTreeMap<String, f64>]| {
            steps.iter().map(|step| step["reward/regex"]).sum::<f64>() / steps.len() as f64
        };
        (mean(&steps[..5]), mean(&steps[25..]))
    };
    let (before, after) = last("1.0");
    assert!(after > before + 0.15, "{before} → {after}");
    let (before, after) = last("-1.0");
    assert!(after < before - 0.15, "{before} → {after} with the opposite sign");
}
