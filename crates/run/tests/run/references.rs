//! References of a stage: models of their own, kept scores, and moves towards the policy.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_config::Config;
use rloom_run::{ResumeOptions, RunError, StopFlag};
use rloom_telemetry::{Event, EventLine, Observer};

use crate::preferences::{DPO, KTO, StopEarly, steps, tiny, weights};

#[derive(Default)]
struct Warnings(Vec<String>);

impl Observer for Warnings {
    fn observe(&mut self, line: &EventLine) {
        if let Event::Warning { message } = &line.event {
            self.0.push(message.clone());
        }
    }
}

/// Trains and returns the weights and the warnings.
fn train(config: &Config, stage: &str) -> (Vec<u8>, Vec<String>) {
    let mut warnings = Warnings::default();
    rloom_run::train(config, &mut warnings, &StopFlag::default()).unwrap();
    (weights(config, stage), warnings.0)
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// The scores of the first run serve the second, which ends in the same weights. So does one whose kept scores are damaged.
#[test]
fn scores_are_kept_between_runs() {
    for (recipe, stage, method) in [(DPO, "dpo", "dpo"), (KTO, "kto", "kto"), (KTO, "kto", "bco")] {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("scores");
        let setting = format!("trainer.reference.cache='{}'", cache.display());
        let of = |name: &str, more: &[&str]| tiny(&directory.path().join(name), recipe, stage, method, more);
        let (computed, _) = train(&of("computed", &[]), stage);
        let (first, warnings) = train(&of("first", &[&setting]), stage);
        assert!(first == computed, "{method}: other weights with kept scores");
        assert!(!warnings.iter().any(|warning| warning.contains("scores")), "{warnings:?}");
        let kept = files(&cache);
        assert_eq!(kept.len(), 1, "{method}");
        let (second, _) = train(&of("second", &[&setting]), stage);
        assert!(second == computed, "{method}: other weights with the scores of another run");
        assert_eq!(files(&cache), kept, "{method}: nothing was computed again");
        let (path, mut bytes) = kept.into_iter().next().unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (third, warnings) = train(&of("third", &[&setting]), stage);
        assert!(third == computed, "{method}: other weights with damaged scores");
        assert!(warnings.iter().any(|warning| warning.contains("is damaged")), "{warnings:?}");
        let (fourth, warnings) = train(&of("fourth", &[&setting]), stage);
        assert!(fourth == computed, "{method}: other weights with repaired scores");
        assert!(!warnings.iter().any(|warning| warning.contains("scores")), "{warnings:?}");
        // The scores depend on the reference: those of other weights are computed.
        let other =
            tiny(&directory.path().join("other"), recipe, stage, method, &[&setting, "trainer.threads=1"]);
        let other = Config { run: rloom_config::RunSettings { seed: 9, ..other.run.clone() }, ..other };
        let before = files(&cache).len();
        train(&other, stage);
        assert!(files(&cache).len() > before, "{method}: scores of another reference were used");
    }
}

/// A run that stops and resumes uses the kept scores of its first attempt.
#[test]
fn interrupted_runs_use_kept_scores() {
    let directory = tempfile::tempdir().unwrap();
    let setting = format!("trainer.reference.cache='{}'", directory.path().join("scores").display());
    let whole = tiny(&directory.path().join("whole"), KTO, "kto", "kto", &[]);
    let broken = tiny(&directory.path().join("broken"), KTO, "kto", "kto", &[&setting]);
    let (expected, _) = train(&whole, "kto");
    let stop = StopFlag::default();
    assert!(rloom_run::train(&broken, &mut StopEarly("kto", stop.clone()), &stop).unwrap().interrupted);
    let options = ResumeOptions::default();
    rloom_run::resume(&broken.run_directory(), &broken, options, &mut (), &StopFlag::default()).unwrap();
    assert!(weights(&broken, "kto") == expected);
    assert_eq!(files(&directory.path().join("scores")).len(), 1);
}

/// With a mixup of 1 after every step the reference is the policy before each step.
#[test]
fn references_move_towards_the_policy() {
    let directory = tempfile::tempdir().unwrap();
    let of = |name: &str, more: &[&str]| {
        let config = tiny(&directory.path().join(name), DPO, "dpo", "dpo", more);
        let (weights, _) = train(&config, "dpo");
        let losses: Vec<f64> = steps(&config, "dpo").iter().map(|step| step["loss"]).collect();
        (weights, losses)
    };
    let rate = "trainer.learning_rate=1e-2";
    let (fixed, losses) = of("fixed", &[rate, "trainer.warmup_steps=0"]);
    let is_start = |loss: f64| (loss - std::f64::consts::LN_2).abs() < 1e-9;
    assert!(is_start(losses[0]) && !is_start(losses[1]) && !is_start(losses[2]), "{losses:?}");
    let replaced = ["trainer.reference={sync_every=1,mixup=1.0}", rate, "trainer.warmup_steps=0"];
    let (moved, losses) = of("replaced", &replaced);
    assert!(losses.iter().all(|&loss| is_start(loss)), "{losses:?}");
    assert!(moved != fixed);
    let second = ["trainer.reference={sync_every=2,mixup=1.0}", rate, "trainer.warmup_steps=0"];
    let (_, losses) = of("second", &second);
    assert!(is_start(losses[0]) && !is_start(losses[1]) && is_start(losses[2]), "{losses:?}");
    let half = ["trainer.reference={sync_every=1,mixup=0.5}", rate, "trainer.warmup_steps=0"];
    let (_, losses) = of("half", &half);
    assert!(is_start(losses[0]) && !is_start(losses[1]), "{losses:?}");
}

/// A moved reference is part of checkpoints.
#[test]
fn runs_with_moving_references_resume_to_the_same_bytes() {
    for (recipe, stage, method) in [(DPO, "dpo", "dpo"), (KTO, "kto", "kto")] {
        let directory = tempfile::tempdir().unwrap();
        let more = ["trainer.reference.sync_every=1", "trainer.learning_rate=1e-2"];
        let of = |name: &str| tiny(&directory.path().join(name), recipe, stage, method, &more);
        let (whole, broken) = (of("whole"), of("broken"));
        let (expected, _) = train(&whole, stage);
        let stop = StopFlag::default();
        assert!(rloom_run::train(&broken, &mut StopEarly(stage, stop.clone()), &stop).unwrap().interrupted);
        let options = ResumeOptions::default();
        rloom_run::resume(&broken.run_directory(), &broken, options, &mut (), &StopFlag::default()).unwrap();
        assert!(weights(&broken, stage) == expected, "{method}: other weights after a resume");
        let [own, other] = [&whole, &broken].map(|config| {
            let last = config.run_directory().join(format!("checkpoints/{stage}-step-000003"));
            std::fs::read(last.join("trainer/reference/model.safetensors")).unwrap()
        });
        assert!(own == other, "{method}: another reference after a resume");
        assert!(own != expected[..own.len()], "the reference is not the policy");
    }
}

/// The default reference by its folder gives the same bytes; another model gives others, and one of other tokens is refused.
#[test]
fn references_may_be_models_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let of = |name: &str, more: &[&str]| tiny(&directory.path().join(name), DPO, "dpo", "dpo", more);
    let plain = of("plain", &[]);
    let (expected, _) = train(&plain, "dpo");
    let checkpoints = plain.run_directory().join("checkpoints");
    let reference = |name: &str| format!("trainer.reference.model='{}'", checkpoints.join(name).display());
    let (same, _) = train(&of("same", &[&reference("warmup-step-000001")]), "dpo");
    assert!(same == expected, "the start of the stage by its folder");
    let (other, _) = train(&of("other", &[&reference("dpo-step-000003")]), "dpo");
    assert!(other != expected, "another reference");
    let mut stranger = of("stranger", &["trainer.reference.model='folder'"]);
    let small = tiny(&directory.path().join("small"), DPO, "dpo", "dpo", &[]);
    let rloom_config::ModelSource::New { model, .. } = &small.model else { panic!("a new model") };
    let folder = directory.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let model = rloom_model::Model::init(&model.config(7).unwrap(), 1);
    model.save(&folder, &rloom_model::GenerationConfig::default()).unwrap();
    stranger.stages[1].trainer.reference.as_mut().unwrap().model = Some(folder.display().to_string());
    let error = rloom_run::train(&stranger, &mut (), &StopFlag::default()).unwrap_err();
    assert!(matches!(error, RunError::OtherVocabulary { own: 7, .. }), "{error}");
}
