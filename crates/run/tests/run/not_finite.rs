//! Optimiser steps on samples whose scores are not finite: refused, or skipped up to a limit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use crate::recipe;
use miette::Diagnostic;
use rloom_config::Config;
use rloom_core::metric;
use rloom_run::{ResumeOptions, RunError, StageError, StopFlag, Summary};
use rloom_telemetry::{Event, read_events};
use rloom_text::Tokenizer;

/// Demonstrations, one per step.
const TEXT: &str = r#"
run = { name = "damaged", threads = 1, checkpoint_every = 3, keep_last = 10 }
data = { generator = "arithmetic", operations = ["+"], max_digits = 2 }

[[stage]]
name = "warmup"
method = "sft"
steps = 12
groups_per_batch = 1
"#;

/// A model that computes NaN for every sample with a 9.
fn damaged_model(directory: &Path) -> PathBuf {
    let overrides = ["model.new.tie_embeddings=false", "stage.warmup.steps=1", "stage.rl.steps=1"];
    let config = recipe::config(directory, &overrides);
    let summary = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let folder = summary.model.unwrap();
    let nine = Tokenizer::load(&folder).unwrap().encode("9", false).unwrap()[0] as usize;
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let embedding = &tensors["model.embed_tokens.weight"];
    let width = embedding["shape"][1].as_u64().unwrap() as usize;
    let start = 8 + header + embedding["data_offsets"][0].as_u64().unwrap() as usize + 4 * width * nine;
    bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    folder
}

fn config(model: &Path, directory: &Path, limit: u64) -> Config {
    let overrides = [
        format!("run.directory={}", directory.display()),
        format!("model.path={}", model.display()),
        format!("trainer.max_skipped_steps={limit}"),
    ];
    Config::from_text("damaged.toml", TEXT, &overrides).map_err(|errors| errors.to_string()).unwrap()
}

fn train(config: &Config) -> Result<Summary, RunError> {
    rloom_run::train(config, &mut (), &StopFlag::default())
}

fn last_weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("checkpoints/warmup-step-000012/model.safetensors")).unwrap()
}

/// Steps of the run that were skipped, and the warnings about them.
fn skipped(run: &Path) -> (Vec<u64>, Vec<String>) {
    let (mut steps, mut warnings) = (Vec::new(), Vec::new());
    for line in read_events(&run.join("events.jsonl")).unwrap() {
        match line.event {
            Event::Step { metrics } if metrics.contains_key(metric::OPTIMIZER_STEPS_SKIPPED) => {
                steps.push(line.step);
            }
            Event::Warning { message } if message.contains("skipped") => warnings.push(message),
            _ => {}
        }
    }
    (steps, warnings)
}

#[test]
fn steps_that_are_not_finite_are_skipped_up_to_a_limit() {
    let directory = tempfile::tempdir().unwrap();
    let model = damaged_model(directory.path());
    let all = config(&model, &directory.path().join("all"), 100);
    train(&all).unwrap();
    let (steps, warnings) = skipped(&all.run_directory());
    assert!((2..12).contains(&steps.len()), "{steps:?}");
    assert_eq!(warnings.len(), steps.len());
    let expected =
        format!("step {}: 1 optimiser step was skipped: the log-probability is not finite", steps[1]);
    assert!(warnings[1].starts_with(&expected), "{warnings:?}");
    assert!(warnings[1].ends_with("; 2 of at most 100 in the stage"), "{warnings:?}");

    // Without a limit the first one ends the run; the hint of `StageError::NotFinite` is then followed.
    let none = config(&model, &directory.path().join("none"), 0);
    let error = train(&none).unwrap_err();
    let RunError::Stage(StageError::NotFinite { step, skipped: 0, .. }) = &error else { panic!("{error}") };
    assert_eq!(*step, steps[0]);
    let run = none.run_directory();
    let hint = error.help().unwrap().to_string();
    let change = "stage.warmup.trainer.max_skipped_steps=10";
    assert!(hint.contains(&format!("`--resume RUN --set {change}`")), "{hint}");
    resume(&run, &[change]).unwrap();
    assert!(last_weights(&run) == last_weights(&all.run_directory()));

    // The limit counts for the whole stage, across checkpoints and attempts.
    let few = config(&model, &directory.path().join("few"), steps.len() as u64 - 1);
    let run = few.run_directory();
    for attempt in [train(&few), resume(&run, &[])] {
        let error = attempt.unwrap_err();
        let RunError::Stage(StageError::NotFinite { step, skipped, .. }) = &error else { panic!("{error}") };
        assert_eq!((*step, *skipped), (*steps.last().unwrap(), steps.len() as u64 - 1), "{error}");
    }
    resume(&run, &[&format!("stage.warmup.trainer.max_skipped_steps={}", steps.len())]).unwrap();
    assert!(last_weights(&run) == last_weights(&all.run_directory()));
}

fn resume(run: &Path, overrides: &[&str]) -> Result<Summary, RunError> {
    let config = Config::load(&[run.join("config.toml")], overrides).map_err(|e| e.to_string()).unwrap();
    rloom_run::resume(run, &config, ResumeOptions::default(), &mut (), &StopFlag::default())
}
