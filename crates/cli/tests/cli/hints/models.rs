//! Hints of model folders: files of a small checkpoint are damaged, and the hint is followed.

use std::path::Path;

use serde_json::{Value, json};

use super::scenes::{Scene, refused};
use crate::support::{Sandbox, TINY};

pub(super) const SCENES: &[Scene] = &[
    ("ConfigError::NotFound", no_config),
    ("ConfigError::Unsupported", unsupported),
    ("Inconsistency::NoHeadDim", no_head_dim),
    ("CheckpointError::OtherFormat", other_format),
    ("CheckpointError::Truncated", truncated),
    ("TextError::MissingFile", no_tokenizer),
    ("TextError::InvalidFile", invalid_tokenizer),
    ("EnvError::NoEndToken", no_end_token),
];

/// Copies the files of a folder.
pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Copies the model again.
fn restore(sandbox: &Sandbox) {
    copy(&sandbox.path("runs/tiny/checkpoints/latest"), &sandbox.path("model"));
}

/// Changes a field of a JSON file of the model; null removes it.
fn set(sandbox: &Sandbox, file: &str, field: &str, value: Value) {
    let path = sandbox.path("model").join(file);
    let mut content: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let fields = content.as_object_mut().unwrap();
    if value.is_null() {
        fields.remove(field)
    } else {
        fields.insert(field.to_owned(), value)
    };
    std::fs::write(path, content.to_string()).unwrap();
}

const USE: [&str; 3] = ["generate", "model", "1+1="];

fn works(sandbox: &Sandbox) {
    let result = sandbox.run(&USE);
    assert_eq!(result.code, Some(0), "{}", result.text());
}

fn remove(sandbox: &Sandbox, file: &str) {
    std::fs::remove_file(sandbox.path("model").join(file)).unwrap();
}

fn no_config(sandbox: &Sandbox) {
    remove(sandbox, "config.json");
    refused(sandbox, &USE, "a model folder contains config.json, model.safetensors and tokenizer.json");
    restore(sandbox);
    works(sandbox);
}

fn unsupported(sandbox: &Sandbox) {
    set(sandbox, "config.json", "attention_dropout", json!(0.1));
    refused(sandbox, &USE, "set it to 0 to train without it");
    set(sandbox, "config.json", "attention_dropout", json!(0));
    works(sandbox);
    set(sandbox, "config.json", "num_experts", json!(8));
    refused(sandbox, &USE, "use a dense model of the same family");
    set(sandbox, "config.json", "num_experts", Value::Null);
    works(sandbox);
}

fn no_head_dim(sandbox: &Sandbox) {
    set(sandbox, "config.json", "head_dim", Value::Null);
    set(sandbox, "config.json", "num_attention_heads", json!(3));
    set(sandbox, "config.json", "num_key_value_heads", json!(3));
    refused(sandbox, &USE, "set head_dim");
    // The weights are of two heads: the configuration is accepted as soon as their sizes match.
    set(sandbox, "config.json", "head_dim", json!(8));
    set(sandbox, "config.json", "num_attention_heads", json!(2));
    set(sandbox, "config.json", "num_key_value_heads", json!(2));
    works(sandbox);
}

fn other_format(sandbox: &Sandbox) {
    remove(sandbox, "model.safetensors");
    sandbox.write("model/pytorch_model.bin", "");
    refused(sandbox, &USE, "it has weights in another format; open it with transformers and save it again");
    restore(sandbox);
    works(sandbox);
}

fn truncated(sandbox: &Sandbox) {
    let path = sandbox.path("model/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    refused(sandbox, &USE, "the download or copy was interrupted; fetch the file again");
    std::fs::write(&path, &bytes).unwrap();
    works(sandbox);
}

fn no_tokenizer(sandbox: &Sandbox) {
    remove(sandbox, "tokenizer.json");
    refused(
        sandbox,
        &USE,
        "a model folder needs the tokenizer.json that `transformers` saves with the weights",
    );
    restore(sandbox);
    works(sandbox);
}

fn invalid_tokenizer(sandbox: &Sandbox) {
    sandbox.write("model/tokenizer.json", "{");
    refused(sandbox, &USE, "the file may be incomplete; download or copy it again");
    restore(sandbox);
    works(sandbox);
}

fn no_end_token(sandbox: &Sandbox) {
    // A demonstration ends with the end-of-text token.
    let train = [
        "train",
        "tiny.toml",
        "--quiet",
        "--set",
        "model.path=model",
        "--set",
        "stage.rl.steps=1",
        "--set",
        "stage.warmup.steps=1",
    ];
    set(sandbox, "tokenizer_config.json", "eos_token", Value::Null);
    set(sandbox, "generation_config.json", "eos_token_id", Value::Null);
    set(sandbox, "config.json", "eos_token_id", Value::Null);
    refused(
        sandbox,
        &train,
        "set `eos_token` in tokenizer_config.json, or `eos_token_id` in generation_config.json",
    );
    set(sandbox, "generation_config.json", "eos_token_id", json!(1));
    let result = sandbox.run(&train);
    assert_eq!(result.code, Some(0), "{}", result.text());
    set(sandbox, "generation_config.json", "eos_token_id", Value::Null);
    set(sandbox, "tokenizer_config.json", "eos_token", json!("<|eos|>"));
    let result = sandbox.run(&train);
    assert_eq!(result.code, Some(0), "{}", result.text());
}

#[test]
fn of_models() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let result = sandbox.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    for (key, scene) in SCENES {
        println!("{key}");
        restore(&sandbox);
        scene(&sandbox);
    }
}
