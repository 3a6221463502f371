//! Model folders, complete and damaged.

use std::fs;
use std::path::Path;

use miette::Diagnostic;
use proptest::prelude::*;
use rloom_model::{CheckpointError, ConfigError, GenerationConfig, LoadError, Model, NewModel};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::reference::{NAMES, fixture, model};

/// A copy of a fixture, to be modified.
fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn edit_config(folder: &Path, field: &str, value: Value) {
    edit_json(&folder.join("config.json"), |config| config[field] = value);
}

fn failure(folder: &Path) -> CheckpointError {
    match Model::load(folder) {
        Err(LoadError::Checkpoint(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// A model is unchanged by saving and loading, whatever the fixture's precision and number of shards.
#[test]
fn saving_and_loading_is_bitwise_exact() {
    for name in NAMES {
        let before = model(name);
        let generation = GenerationConfig::load(&fixture(name), before.config()).unwrap();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        before.save(folders[0].path(), &generation).unwrap();
        let after = Model::load(folders[0].path()).unwrap();
        for ((a, b), (spec, values)) in before.named_tensors().zip(after.named_tensors()) {
            assert_eq!((a, b), (spec, values), "{name}");
        }
        let again = GenerationConfig::load(folders[0].path(), after.config()).unwrap();
        assert_eq!(again, generation);
        after.save(folders[1].path(), &again).unwrap();
        for file in ["config.json", "generation_config.json", "model.safetensors"] {
            let bytes = |folder: &TempDir| fs::read(folder.path().join(file)).unwrap();
            assert!(bytes(&folders[0]) == bytes(&folders[1]), "{name} {file}");
        }
    }
}

/// The safetensors crate's own reader accepts the file, including the metadata that transformers requires.
#[test]
fn saved_files_are_valid_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("tiny-qwen3");
    model.save(folder.path(), &GenerationConfig::default()).unwrap();
    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let names: Vec<String> = model.named_tensors().map(|(spec, _)| spec.name.clone()).collect();
    assert_eq!(metadata.offset_keys().len(), names.len());
    assert!(names.contains(&"model.layers.1.self_attn.q_norm.weight".into()));
    assert!(!names.contains(&"lm_head.weight".into()), "a tied head is not written");
}

#[test]
fn initial_weights_are_a_function_of_the_seed() {
    let new: NewModel = serde_json::from_value(json!({
        "layers": 2, "hidden_size": 32, "heads": 4, "intermediate_size": 48, "max_positions": 32
    }))
    .unwrap();
    let config = new.config(50).unwrap();
    let tensors = |seed| -> Vec<Vec<f32>> {
        Model::init(&config, seed).named_tensors().map(|(_, values)| values.to_vec()).collect()
    };
    assert_eq!(tensors(1), tensors(1));
    assert_ne!(tensors(1), tensors(2));
    let model = Model::init(&config, 1);
    let std = |name: &str| {
        let (_, values) = model.named_tensors().find(|(spec, _)| spec.name == name).unwrap();
        (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt()
    };
    assert!((std("model.embed_tokens.weight") - 0.02).abs() < 0.002);
    assert!((std("model.layers.0.mlp.down_proj.weight") - 0.01).abs() < 0.001);
    assert_eq!(std("model.norm.weight"), 1.0);
}

#[test]
fn a_truncated_file_is_named_with_its_sizes() {
    for keep in [4, 100, 5000, 94_000] {
        let folder = copy("tiny-llama");
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..keep]).unwrap();
        let error = failure(folder.path());
        let text = error.to_string();
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        if keep >= 5000 {
            assert!(
                text.contains(&format!("has {keep} bytes, its header describes {}", bytes.len())),
                "{text}"
            );
            assert!(error.help().is_some());
        }
    }
    let folder = copy("tiny-llama");
    let path = folder.path().join("model.safetensors");
    fs::write(&path, b"this is no tensor file at all, but long enough").unwrap();
    assert!(failure(folder.path()).to_string().contains("not a safetensors file"));
    fs::write(&path, b"").unwrap();
    assert!(failure(folder.path()).to_string().contains("not a safetensors file"));
}

#[test]
fn a_configuration_of_another_model_is_rejected() {
    let folder = copy("tiny-llama");
    edit_config(folder.path(), "intermediate_size", json!(48));
    let text = failure(folder.path()).to_string();
    assert!(
        text.contains("mlp.gate_proj.weight has shape [56, 32], the configuration requires [48, 32]"),
        "{text}"
    );

    edit_config(folder.path(), "intermediate_size", json!(56));
    edit_config(folder.path(), "num_hidden_layers", json!(3));
    let error = failure(folder.path());
    assert!(
        matches!(&error, CheckpointError::MissingTensor { name, more: 8, .. } if name.contains("layers.2"))
    );

    edit_config(folder.path(), "num_hidden_layers", json!(1));
    let error = failure(folder.path());
    assert!(
        matches!(&error, CheckpointError::UnexpectedTensor { name, more: 8, .. } if name.contains("layers.1"))
    );
}

/// A tied model may store its head too, if it equals the embedding.
#[test]
fn a_stored_tied_head_must_be_the_embedding() {
    let folder = copy("tiny-llama");
    edit_config(folder.path(), "tie_word_embeddings", json!(true));
    assert!(
        matches!(failure(folder.path()), CheckpointError::UnexpectedTensor { name, .. } if name == "lm_head.weight")
    );

    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let range = |name: &str| {
        let (start, end) = metadata.info(name).unwrap().data_offsets;
        8 + header + start..8 + header + end
    };
    let (embedding, head) = (range("model.embed_tokens.weight"), range("lm_head.weight"));
    bytes.copy_within(embedding, head.start);
    fs::write(&path, bytes).unwrap();
    Model::load(folder.path()).unwrap();
}

#[test]
fn unsupported_number_types_are_rejected() {
    let folder = copy("tiny-qwen2");
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    // Same width, so that the offsets stay valid.
    let text = String::from_utf8_lossy(&bytes[8..]).into_owned();
    let at = 8 + text.find("\"F16\"").unwrap();
    let mut damaged = bytes.clone();
    damaged[at..at + 5].copy_from_slice(b"\"I16\"");
    fs::write(&path, damaged).unwrap();
    assert!(failure(folder.path()).to_string().contains("is I16, only F32, F16 and BF16 are read"));
}

#[test]
fn shards_must_match_their_index() {
    let folder = copy("tiny-qwen3");
    let index = folder.path().join("model.safetensors.index.json");
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    edit_json(&index, |index| {
        index["weight_map"]["model.norm.weight"] = json!("model-00001-of-00002.safetensors");
    });
    let text = failure(folder.path()).to_string();
    assert!(text.contains("model.norm.weight is not in \"model-00001"), "{text}");

    edit_json(&index, |index| index["weight_map"]["model.norm.weight"] = json!("../elsewhere.safetensors"));
    assert!(failure(folder.path()).to_string().contains("is not a file of this folder"));

    let folder = copy("tiny-qwen3");
    fs::copy(
        folder.path().join("model-00001-of-00002.safetensors"),
        folder.path().join(shard.file_name().unwrap()),
    )
    .unwrap();
    let text = failure(folder.path()).to_string();
    assert!(text.contains("is in both"), "{text}");

    fs::remove_file(folder.path().join(shard.file_name().unwrap())).unwrap();
    let text = failure(folder.path()).to_string();
    assert!(text.contains("model-00002-of-00002.safetensors: ") && text.contains("No such file"), "{text}");
}

#[test]
fn folders_without_weights_report_other_formats() {
    let folder = copy("tiny-llama");
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let error = failure(folder.path());
    let text = error.to_string();
    assert!(text.ends_with("no model.safetensors and no model.safetensors.index.json"), "{text}");
    assert!(error.help().is_none());
    fs::write(folder.path().join("pytorch_model.bin"), b"").unwrap();
    let hint = failure(folder.path()).help().unwrap().to_string();
    assert!(hint.starts_with("it has weights in another format"), "{hint}");
    assert!(!Model::load(folder.path()).unwrap_err().is_wrong_path());
    let path = folder.path().join("config.json");
    for wrong in [folder.path().join("nowhere"), path.clone()] {
        let error = Model::load(&wrong).unwrap_err();
        assert!(matches!(&error, LoadError::Config(ConfigError::NotFound { .. })), "{error}");
        assert!(error.is_wrong_path() && error.to_string().ends_with("config.json: no such file"), "{error}");
        assert!(error.help().is_some());
    }
}

#[test]
fn generation_settings_are_read_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let config = model("tiny-llama").config().clone();
    let from_config = GenerationConfig::load(folder.path(), &config).unwrap();
    assert_eq!((from_config.eos_token_ids, from_config.pad_token_id), (vec![2], Some(0)));
    let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [7, 9],
                   "repetition_penalty": 1.05}"#;
    fs::write(folder.path().join("generation_config.json"), text).unwrap();
    let read = GenerationConfig::load(folder.path(), &config).unwrap();
    assert_eq!(
        (read.temperature, read.top_k, read.top_p, read.min_p),
        (Some(0.6), Some(20), Some(0.95), None)
    );
    assert_eq!((read.bos_token_id, &read.eos_token_ids[..]), (Some(1), &[7, 9][..]));
    read.save(folder.path()).unwrap();
    let written = fs::read_to_string(folder.path().join("generation_config.json")).unwrap();
    assert!(written.contains("\"repetition_penalty\": 1.05") && written.ends_with("}\n"), "{written}");
    fs::write(folder.path().join("generation_config.json"), r#"{"temperature": "hot"}"#).unwrap();
    let text = GenerationConfig::load(folder.path(), &config).unwrap_err().to_string();
    assert!(text.ends_with("generation_config.json: temperature is \"hot\", expected a number"), "{text}");
}

/// Errors of the operating system are reported with the path, even if only the last write fails.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_the_path() {
    for file in ["model.safetensors", "config.json", "generation_config.json"] {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join(file)).unwrap();
        let error =
            model("tiny-qwen2").save(folder.path(), &GenerationConfig::default()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("No space left"), "{error}");
    }
}

/// Sizes that only the configuration states are compared with the file before memory is allocated for them: each of
/// these would take terabytes.
#[test]
fn absurd_sizes_are_rejected_before_anything_is_allocated() {
    for (field, value) in [
        ("vocab_size", 4_000_000_000_u64),
        ("hidden_size", 1_000_000),
        ("intermediate_size", 4_000_000_000),
        ("num_hidden_layers", 10_000),
        ("head_dim", 200_000_000),
    ] {
        let folder = copy("tiny-llama");
        edit_config(folder.path(), field, json!(value));
        let error = failure(folder.path());
        assert!(
            matches!(error, CheckpointError::Shape { .. } | CheckpointError::MissingTensor { .. }),
            "{field}: {error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any change of a valid folder gives a model or an error.
    #[test]
    fn damaged_folders_do_not_panic(
        name in 0..NAMES.len(), file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((0_usize..2000, any::<u8>()), 1..5),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let folder = copy(NAMES[name]);
        let mut paths: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let path = &paths[file.index(paths.len())];
        let mut bytes = fs::read(path).unwrap();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        fs::write(path, bytes).unwrap();
        if let Ok(model) = Model::load(folder.path()) {
            GenerationConfig::load(folder.path(), model.config()).ok();
        }
    }
}
