//! Every type of rows from JSONL, from Parquet and from a hub: the same tasks, and the same errors (`golden/row_types.py`).

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rloom_core::{Demonstration, Task};
use rloom_data::{DataSettings, Dataset, FileSettings, RowCache, RowKind, Source, Split};
use rloom_hub::{Hub, HubOptions};
use serde::Deserialize;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FORMATS: [&str; 2] = ["jsonl", "parquet"];

/// What is in the folder of rows.
#[derive(Deserialize)]
struct Index {
    /// What is read from each file.
    types: BTreeMap<String, String>,
    /// What is read from each file with a row that cannot be used, and the message.
    wrong: BTreeMap<String, (String, String)>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/row_types")
}

fn index() -> Index {
    serde_json::from_slice(&fs::read(folder().join("index.json")).unwrap()).unwrap()
}

fn kind_of(name: &str) -> RowKind {
    match name {
        "demonstrations" => RowKind::Demonstrations,
        "pairs" => RowKind::Pairs,
        "labels" => RowKind::Labels,
        "steps" => RowKind::Steps,
        _ => RowKind::Prompts,
    }
}

fn split_of(kind: RowKind) -> Split {
    if kind == RowKind::Prompts { Split::Train } else { Split::Demonstration }
}

fn read(settings: &DataSettings, kind: RowKind, hub: &Hub) -> Result<Vec<Task>, String> {
    let opened = Dataset::open_kind(settings, split_of(kind), kind, 1, hub);
    opened.and_then(|dataset| dataset.iter().collect()).map_err(|error| error.to_string())
}

fn of_file(path: &Path) -> DataSettings {
    DataSettings::from(Source::Files(FileSettings::new(path)))
}

/// Tasks with the fields that serialisation leaves out; a field that is null counts as absent.
fn comparable(tasks: &[Task]) -> Vec<(Task, BTreeMap<String, serde_json::Value>)> {
    let extra = |task: &Task| {
        let fields = task.extra.iter().filter(|(_, value)| !value.is_null());
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    tasks
        .iter()
        .map(|task| (Task { extra: std::sync::Arc::default(), ..task.clone() }, extra(task)))
        .collect()
}

#[test]
fn parquet_has_the_tasks_of_jsonl() {
    let (index, offline) = (index(), Hub::from_env());
    assert_eq!(index.types.len(), 15);
    for (name, kind) in &index.types {
        let kind = kind_of(kind);
        let of = |format: &str| {
            let path = folder().join(format!("{name}.{format}"));
            comparable(&read(&of_file(&path), kind, &offline).unwrap())
        };
        let [jsonl, parquet] = FORMATS.map(of);
        assert!(!jsonl.is_empty() && jsonl == parquet, "{name}: {jsonl:?}\n{parquet:?}");
    }
}

/// A hub's data set with the rows of a file, in a cache.
fn cached(format: &str, names: impl Iterator<Item = String>) -> (tempfile::TempDir, Hub) {
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("datasets--org--rows");
    let snapshot = repository.join("snapshots").join(COMMIT);
    for name in names {
        fs::create_dir_all(snapshot.join(&name)).unwrap();
        let file = format!("{name}.{format}");
        fs::copy(folder().join(&file), snapshot.join(&name).join(format!("train-00000-of-00001.{format}")))
            .unwrap();
    }
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    let hub = Hub::new(HubOptions { offline: true, ..HubOptions::new(cache.path().to_owned()) });
    (cache, hub)
}

#[test]
fn a_hub_has_the_tasks_of_jsonl() {
    let (index, offline) = (index(), Hub::from_env());
    for format in FORMATS {
        let (_cache, hub) = cached(format, index.types.keys().cloned());
        for (name, kind) in &index.types {
            let settings = format!(r#"{{"path": "hf:org/rows/{name}:train"}}"#);
            let settings: DataSettings = serde_json::from_str(&settings).unwrap();
            let found = read(&settings, kind_of(kind), &hub).unwrap();
            let own =
                read(&of_file(&folder().join(format!("{name}.jsonl"))), kind_of(kind), &offline).unwrap();
            assert_eq!(comparable(&found), comparable(&own), "{name} as {format}");
        }
    }
}

#[test]
fn rows_that_cannot_be_used_are_named_with_file_and_row() {
    let (index, offline) = (index(), Hub::from_env());
    assert!(index.wrong.len() >= 20);
    for (name, (kind, message)) in &index.wrong {
        for (format, place) in FORMATS.into_iter().zip([":2", ": row 2"]) {
            let path = folder().join(format!("wrong_{name}.{format}"));
            let error = read(&of_file(&path), kind_of(kind), &offline).unwrap_err();
            assert_eq!(error, format!("{}{place}: {message}", path.display()));
        }
    }
}

/// A pair is two labelled completions, as in TRL's `unpair_preference_dataset`: the chosen one is desirable.
#[test]
fn pairs_are_labelled_completions() {
    let hub = Hub::from_env();
    let tasks = read(&of_file(&folder().join("unpaired.jsonl")), RowKind::Labels, &hub).unwrap();
    let labelled = |task: &Task| match &task.demonstration {
        Some(Demonstration::Labelled(own)) => (task.index, own.completion.clone(), own.label),
        other => (task.index, format!("{other:?}").into(), false),
    };
    let found: Vec<_> = tasks.iter().map(labelled).collect();
    assert_eq!(found, [(0, "4".into(), true), (1, "5".into(), false)]);
    assert_eq!(tasks[0].prompt, tasks[1].prompt);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.jsonl");
    let rows = |extra: &str| {
        let row = |n: u32| format!(r#"{{"prompt": "{n}", "chosen": "a", "rejected": "b"{extra}}}"#);
        (0..5).map(|n| row(n) + "\n").collect::<String>()
    };
    fs::write(&path, rows(r#", "source": "x""#)).unwrap();
    let open = |change: &dyn Fn(&mut FileSettings), split| {
        let mut settings = FileSettings::new(&path);
        change(&mut settings);
        Dataset::open_kind(&DataSettings::from(Source::Files(settings)), split, RowKind::Labels, 1, &hub)
    };
    let all = open(&|_| {}, Split::Demonstration).unwrap();
    assert_eq!(all.len(), 10);
    assert!(all.iter().all(|task| task.unwrap().extra.len() == 1));
    assert!(all.location(7).unwrap().to_string().ends_with("pairs.jsonl:4"));
    assert_eq!(all.find(7).unwrap(), Some(all.get(7).unwrap()));
    // Rows are counted, and both completions are held out together.
    assert_eq!(open(&|s| s.limit = Some(3), Split::Demonstration).unwrap().len(), 6);
    let held_out = |s: &mut FileSettings| s.eval_rows = Some(3);
    let [train, eval] = [Split::Demonstration, Split::Eval].map(|split| open(&held_out, split).unwrap());
    assert_eq!((train.len(), eval.len()), (6, 4));
    let prompts = |set: &Dataset| {
        let mut prompts: Vec<String> = set.iter().map(|task| format!("{:?}", task.unwrap().prompt)).collect();
        prompts.dedup();
        prompts
    };
    assert_eq!((prompts(&train).len(), prompts(&eval).len()), (3, 2));
    assert!(prompts(&train).iter().all(|prompt| !prompts(&eval).contains(prompt)));
    // Fields that the settings name are those of labelled rows, and so is a label.
    let named = open(&|s| s.label_field = Some("source".into()), Split::Demonstration).unwrap_err();
    assert!(named.to_string().contains("has the fields of preference pairs"), "{named}");
    fs::write(&path, rows(r#", "label": true"#)).unwrap();
    let labelled = open(&|_| {}, Split::Demonstration).unwrap_err().to_string();
    assert!(labelled.contains("has the fields of preference pairs"), "{labelled}");
    let chosen = |s: &mut FileSettings| s.chosen_field = Some("rejected".into());
    fs::write(&path, rows("")).unwrap();
    let swapped = open(&chosen, Split::Demonstration).unwrap().get(0).unwrap();
    assert_eq!(labelled_text(&swapped), ("b".into(), true));
}

fn labelled_text(task: &Task) -> (Demonstration, bool) {
    match &task.demonstration {
        Some(Demonstration::Labelled(own)) => (own.completion.clone(), own.label),
        other => (format!("{other:?}").into(), false),
    }
}

/// With a cache, the splits of a data set and later openings share what was read.
#[test]
fn a_cache_reads_files_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let rows: Vec<String> =
        (0..6).map(|n| format!("{{\"prompt\": \"{n}\", \"completion\": \"c\"}}\n")).collect();
    let rows = rows.concat();
    fs::write(&path, rows).unwrap();
    let (hub, cache) = (Hub::from_env(), RowCache::default());
    let mut files = FileSettings::new(&path);
    files.eval_rows = Some(2);
    let settings = DataSettings::from(Source::Files(files));
    let open = |split, kind| Dataset::open_cached(&settings, split, kind, 1, &hub, &cache);
    let mut train = open(Split::Demonstration, RowKind::Demonstrations).unwrap();
    fs::remove_file(&path).unwrap();
    train.retain(|position| position != 1);
    let [again, eval] =
        [Split::Demonstration, Split::Eval].map(|split| open(split, RowKind::Demonstrations).unwrap());
    assert_eq!((train.len(), again.len(), eval.len()), (3, 4, 2), "rows that are dropped stay in the cache");
    let of = |set: &Dataset| set.iter().map(|task| task.unwrap().index).collect::<Vec<_>>();
    let all = [of(&again), of(&eval)].concat();
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
    for index in of(&train) {
        assert_eq!(train.find(index).unwrap().unwrap().index, index);
    }
    assert_eq!(train.find(of(&again)[1]).unwrap(), None);
    assert_eq!(train.find(100).unwrap(), None);
    assert!(train.location(1).unwrap().to_string().ends_with(&format!(":{}", of(&train)[1] + 1)));
    // What is read from the rows and the settings are part of the request.
    assert!(open(Split::Train, RowKind::Prompts).is_err());
    cache.retain(|_, kind| kind != RowKind::Demonstrations);
    assert!(open(Split::Eval, RowKind::Demonstrations).is_err());
}

/// The files of `eval_path` are other rows than those of `path`.
#[test]
fn a_cache_tells_held_out_files_apart() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, rows: u32| {
        let lines: Vec<String> = (0..rows).map(|n| format!("{{\"prompt\": \"{name}{n}\"}}\n")).collect();
        let lines = lines.concat();
        let path = folder.path().join(format!("{name}.jsonl"));
        fs::write(&path, lines).unwrap();
        path
    };
    let mut files = FileSettings::new(write("train", 3));
    files.eval_path = Some(FileSettings::new(write("eval", 2)).path);
    let settings = DataSettings::from(Source::Files(files));
    let (hub, cache) = (Hub::from_env(), RowCache::default());
    let len = |split| {
        Dataset::open_cached(&settings, split, RowKind::Prompts, 1, &hub, &cache)
            .map(|set| set.len())
            .unwrap()
    };
    assert_eq!((len(Split::Train), len(Split::Eval), len(Split::Train)), (3, 2, 3));
}
