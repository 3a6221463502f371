//! Data sets of a hub, from its cache.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::fs;
use std::path::Path;

use rloom_data::{DataSettings, Dataset, Split};
use rloom_hub::{Hub, HubOptions};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const CARD: &str = "---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test.jsonl}
- config_name: other
---
";

/// A cached data set with two shards of training rows and a held-out split.
fn cache() -> TempDir {
    let cache = tempfile::tempdir().unwrap();
    let row = |n: u32| format!("{{\"question\": \"{n}+1=\", \"answer\": {}}}\n", n + 1);
    let files = [
        ("README.md", CARD.to_owned()),
        ("main/train-00001-of-00002.jsonl", row(2)),
        ("main/train-00000-of-00002.jsonl", row(0) + &row(1)),
        ("main/test.jsonl", row(9)),
    ];
    let folder = cache.path().join("datasets--org--sums");
    for (path, text) in files {
        write(&folder.join("snapshots").join(COMMIT).join(path), &text);
    }
    write(&folder.join("refs/main"), COMMIT);
    cache
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn hub(cache: &TempDir) -> Hub {
    Hub::new(HubOptions { offline: true, ..HubOptions::new(cache.path().to_owned()) })
}

fn settings(json: &str) -> DataSettings {
    serde_json::from_str(json).unwrap()
}

fn prompts(settings: &DataSettings, split: Split, hub: &Hub) -> Vec<String> {
    let dataset = Dataset::open_with(settings, split, 0, hub).unwrap();
    dataset.iter().map(|task| format!("{:?}", task.unwrap().prompt)).collect()
}

#[test]
fn splits_of_a_hub_are_read() {
    let (cache, json) = (cache(), r#"{"path": "hf:org/sums/main", "eval_path": ["hf:org/sums/main:test"]}"#);
    let (hub, settings) = (hub(&cache), settings(json));
    assert_eq!(
        prompts(&settings, Split::Train, &hub),
        ["Text(\"0+1=\")", "Text(\"1+1=\")", "Text(\"2+1=\")"]
    );
    assert_eq!(prompts(&settings, Split::Eval, &hub), ["Text(\"9+1=\")"]);
}

#[test]
fn data_sets_are_pinned_to_their_commit() {
    let cache = cache();
    let json = r#"{"path": ["hf:org/sums/main", "local.jsonl"], "eval_path": "hf:org/sums/main:test"}"#;
    let mut pinned = settings(json);
    pinned.pin(&hub(&cache)).unwrap();
    let written = serde_json::to_value(&pinned).unwrap();
    assert_eq!(written["path"][0], format!("hf:org/sums/main@{COMMIT}"));
    assert_eq!(written["path"][1], "local.jsonl");
    assert_eq!(written["eval_path"], format!("hf:org/sums/main:test@{COMMIT}"));
    assert_eq!(settings(&written.to_string()), pinned);
    let mut generated = settings(r#"{"generator": "sorting"}"#);
    generated.pin(&hub(&cache)).unwrap();
    assert_eq!(generated, settings(r#"{"generator": "sorting"}"#));
}

#[test]
fn wrong_names_are_errors_that_list_the_right_ones() {
    let cache = cache();
    let error = |json: &str| {
        let error = settings(json).pin(&hub(&cache)).unwrap_err();
        assert!(error.is_wrong_name(), "{error}");
        error.to_string()
    };
    let subsets = error(r#"{"path": "hf:org/sums:train"}"#);
    assert_eq!(subsets, "org/sums: several subsets; available: `main`, `other`");
    let splits = error(r#"{"path": "hf:org/sums/main:dev"}"#);
    assert_eq!(splits, "org/sums/main: no split `dev`; available: `train`, `test`");
    // Rows to train on must not be held out by mistake.
    let splits = error(r#"{"path": "hf:org/sums/main", "eval_path": "hf:org/sums/main"}"#);
    assert_eq!(splits, "org/sums/main: several splits; available: `train`, `test`");
    let form = serde_json::from_str::<DataSettings>(r#"{"path": "hf:sums"}"#).unwrap_err().to_string();
    assert!(form.contains("not `hf:organisation/name[/subset][:split][@revision]`"), "{form}");
}
