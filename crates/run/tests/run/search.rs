//! A model learns to search, from rows whose demonstrations have several turns.

use std::path::Path;
use std::process::Command;

use rloom_config::Config;

use crate::learning::{self, SIGNIFICANT, accuracies, z};

const RECIPE: &str = include_str!("../../../../recipes/search.toml");

/// The recipe with fewer steps and a smaller model.
const SHORT: [&str; 8] = [
    "stage.warmup.steps=300",
    "stage.warmup.eval_every=0",
    "stage.rl.steps=25",
    "stage.rl.groups_per_batch=12",
    "eval.every=25",
    "eval.tasks=200",
    "model.new.layers=2",
    "model.new.hidden_size=64",
];

fn config(directory: &Path, overrides: &[&str]) -> Config {
    let file = |name: &str| directory.join(name).display().to_string();
    let paths = [
        format!("data.path={}", file("search-train.jsonl")),
        format!("data.eval_path={}", file("search-eval.jsonl")),
        format!("environment.tools=[{{kind='search',top_k=1,corpus='{}'}}]", file("search-corpus.jsonl")),
    ];
    let all: Vec<&str> =
        paths.iter().map(String::as_str).chain(SHORT).chain(overrides.iter().copied()).collect();
    learning::config(RECIPE, directory, &all)
}

#[test]
fn a_model_learns_to_search() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/search_data.py");
    let directory = tempfile::tempdir().unwrap();
    assert!(Command::new("python3").arg(script).arg(directory.path()).status().unwrap().success());
    let (before, after, n) = accuracies(&config(directory.path(), &[]));
    assert!(z(before, after, n) > SIGNIFICANT, "{before} → {after} on {n} tasks");
}
