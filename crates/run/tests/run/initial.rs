//! The files of a pretrained model that a run keeps.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use crate::recipe;
use rloom_config::Config;
use rloom_hub::Hub;
use rloom_run::{Policy, ResumeOptions, RunError, StopFlag};
use rloom_store::faults::{Fault, install_at};
use rloom_telemetry::{Event, read_events};

/// A run below `directory` of the model in `directory/model`, with a reference.
fn config(directory: &Path) -> Config {
    let model = directory.join("model");
    let policy = Policy::initial(&recipe::config(directory, &[]), &Hub::from_env()).unwrap();
    std::fs::create_dir(&model).unwrap();
    policy.model().unwrap().save(&model, &policy.generation).unwrap();
    policy.tokenizer.save(&model).unwrap();
    let text = format!(
        "model.path = '{}'\nrun.name = 'kept'\nrun.directory = '{}'\nsampling.max_new_tokens = 4\n\
         data.generator = 'arithmetic'\ndata.max_digits = 1\nreward.components = [{{ kind = 'exact' }}]\n\
         [[stage]]\nname = 'rl'\nmethod = 'grpo'\nsteps = 1\ngroups_per_batch = 1\nalgorithm.kl.coef = 0.1\n",
        model.display(),
        directory.display()
    );
    Config::from_text("kept.toml", &text, &[] as &[&str]).map_err(|errors| errors.to_string()).unwrap()
}

#[test]
fn a_disk_without_room_for_the_model_ends_the_run_before_it_trains() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let run = config.run_directory();
    let fault = install_at(directory.path().to_owned(), "initial/copy", 0, Fault::DiskFull);
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err();
    drop(fault);
    assert!(matches!(error, RunError::InitialModelNotKept { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("could not keep the initial model") && text.contains("could not copy "), "{text}");
    let hints = rloom_core::hints(&error);
    assert!(hints.iter().any(|hint| hint.contains("free disk space")), "{hints:?}");
    let events = read_events(&run.join("events.jsonl")).unwrap();
    assert!(!events.iter().any(|line| matches!(line.event, Event::RunStarted { .. })), "nothing is trained");
    assert!(!run.join("initial").exists() && !run.join(".partial-initial").exists(), "the space is free");
    // With enough space the run starts.
    let options = ResumeOptions::default();
    rloom_run::resume(&run, &config, options, &mut (), &StopFlag::default()).unwrap();
    assert!(run.join("initial/MANIFEST").is_file());
}
