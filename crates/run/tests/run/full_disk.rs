//! A full disk while a checkpoint is written is an error that names the file.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use crate::recipe;
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::TrainEngine;
use rloom_hub::Hub;
use rloom_run::Policy;

/// Writes model, optimiser state, value head and tokenizer as a checkpoint has them.
fn save(policy: &Policy, folder: &Path) -> Result<(), String> {
    let ctx = rloom_run::context(1).unwrap();
    let optimizer = rloom_model::OptimizerSettings::default();
    let model = policy.model().unwrap();
    let generation = policy.generation.clone();
    let mut engine = EmbeddedTrainEngine::with_value_head(ctx, model, None, optimizer, generation);
    engine.save(folder).map_err(|e| e.to_string())?;
    policy.tokenizer.save(folder).map_err(|e| e.to_string())
}

#[test]
fn a_full_disk_is_an_error_for_every_file_of_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let policy = Policy::initial(&recipe::config(directory.path(), &[]), &Hub::from_env()).unwrap();
    let intact = directory.path().join("intact");
    std::fs::create_dir_all(&intact).unwrap();
    save(&policy, &intact).unwrap();
    let files = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries
            .filter(|path| path.is_file())
            .map(|p| p.file_name().unwrap().to_str().unwrap().to_owned())
            .collect()
    };
    let mut names = files(&intact);
    names.extend(files(&intact.join("trainer")).into_iter().map(|name| format!("trainer/{name}")));
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let full = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(full.path().join("trainer")).unwrap();
        // Every write to this device fails with "no space left".
        std::os::unix::fs::symlink("/dev/full", full.path().join(&name)).unwrap();
        let error = save(&policy, full.path()).unwrap_err();
        assert!(error.contains(&name) && error.contains("No space left"), "{name}: {error}");
    }
}
