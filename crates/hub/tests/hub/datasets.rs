//! Data sets: which files are downloaded, the converted branch, pinned commits.

use std::fs;
use std::path::{Path, PathBuf};

use rloom_hub::{DatasetReference, DefaultSplit, Hub, HubError, HubOptions};

use crate::said;
use crate::server::{COMMIT, Faults, Repo, Server};

const CONVERTED_COMMIT: &str = "fedcba9876543210fedcba9876543210fedcba98";
const FORMATS: &[&str] = &["parquet", "jsonl"];

const CARD: &[u8] = b"---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test.jsonl
---
";

fn described() -> Repo {
    Repo::new(&[
        ("README.md", CARD),
        ("main/train-00001-of-00002.parquet", b"second"),
        ("main/train-00000-of-00002.parquet", b"first"),
        ("main/test.jsonl", b"{}"),
        ("other/train.jsonl", b"{}"),
    ])
}

fn reference(text: &str) -> DatasetReference {
    text.parse().unwrap()
}

fn files(hub: &Hub, dataset: &str) -> Result<Vec<PathBuf>, HubError> {
    hub.dataset_files(&reference(dataset), DefaultSplit::Train, FORMATS)
}

fn pinned(hub: &Hub, dataset: &str) -> Result<String, HubError> {
    hub.pin_dataset(&reference(dataset), DefaultSplit::Train, FORMATS).map(|dataset| dataset.to_string())
}

fn contents(files: &[PathBuf]) -> Vec<Vec<u8>> {
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn hub(server: &Server, cache: &Path) -> Hub {
    Hub::new(server.options(cache))
}

#[test]
fn the_files_of_a_split_are_downloaded_in_order() {
    let server = Server::start(&[("datasets/org/name", described())], Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let train = files(&hub, "hf:org/name").unwrap();
    assert_eq!(contents(&train), [&b"first"[..], b"second"]);
    assert!(
        train[0]
            .ends_with(format!("datasets--org--name/snapshots/{COMMIT}/main/train-00000-of-00002.parquet"))
    );
    assert_eq!(server.downloads(), 3, "the card and two shards");
    assert_eq!(contents(&files(&hub, "hf:org/name/main:test").unwrap()), [b"{}"]);
    assert_eq!(server.downloads(), 4);
    let error = files(&hub, "hf:org/name:validation").unwrap_err();
    assert!(error.is_wrong_name(), "{error}");
    assert!(said(&error).contains("no split `validation`; available: `train`, `test`"), "{error}");
    let error = said(&files(&hub, "hf:org/nosuch").unwrap_err());
    assert!(error.contains("no such data set or revision"), "{error}");
}

#[test]
fn a_data_set_is_pinned_to_its_commit() {
    let server = Server::start(&[("datasets/org/name", described())], Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let name = pinned(&hub, "hf:org/name/main:train@main").unwrap();
    assert_eq!(name, format!("hf:org/name/main:train@{COMMIT}"));
    assert_eq!(server.downloads(), 1, "only the card");
    assert!(matches!(pinned(&hub, "hf:org/name/nosuch"), Err(HubError::Subset { .. })), "found early");
    let train = files(&hub, &name).unwrap();
    let requests = server.count("");
    assert_eq!(pinned(&hub, &name).unwrap(), name);
    assert_eq!(files(&hub, &name).unwrap(), train);
    assert_eq!(server.count(""), requests, "a commit in the cache needs no network");
}

/// A pinned data set stays as it was when its branch moves on.
#[test]
fn a_pinned_data_set_does_not_change() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(&[("datasets/org/name", described())], Faults::default());
    let name = pinned(&hub(&server, cache.path()), "hf:org/name").unwrap();
    let later = Repo::new(&[("train.jsonl", b"later")]).at("main", CONVERTED_COMMIT);
    let old = described().at("old", COMMIT);
    let server =
        Server::start(&[("datasets/org/name", later), ("datasets/org/name", old)], Faults::default());
    let hub = hub(&server, cache.path());
    assert_eq!(contents(&files(&hub, &name).unwrap()), [&b"first"[..], b"second"]);
    assert_eq!(contents(&files(&hub, "hf:org/name").unwrap()), [b"later"]);
}

#[test]
fn unsupported_files_are_replaced_by_converted_ones() {
    let original = Repo::new(&[("train.csv", b"a,b"), ("test.csv", b"a,b")]);
    let converted = Repo::new(&[
        ("default/train/0000.parquet", b"converted 0"),
        ("default/train/0001.parquet", b"converted 1"),
    ]);
    let converted = converted.at("refs/convert/parquet", CONVERTED_COMMIT);
    let name = "datasets/org/name";
    let server = Server::start(&[(name, original.clone()), (name, converted)], Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let train = files(&hub, "hf:org/name").unwrap();
    assert_eq!(contents(&train), [b"converted 0", b"converted 1"]);
    let pinned = pinned(&hub, "hf:org/name").unwrap();
    assert_eq!(pinned, format!("hf:org/name@{CONVERTED_COMMIT}"), "the commit of the converted files");
    assert_eq!(files(&hub, &pinned).unwrap(), train);
    let explicit = files(&hub, "hf:org/name/default:train@refs/convert/parquet").unwrap();
    assert_eq!(explicit, train);
    // The converted files are those of the main branch, not of a commit.
    let error = said(&files(&hub, &format!("hf:org/name@{COMMIT}")).unwrap_err());
    assert!(error.contains("no data files that can be read (found: `csv`)"), "{error}");

    let server = Server::start(&[(name, original)], Faults::default());
    let error =
        files(&Hub::new(server.options(tempfile::tempdir().unwrap().path())), "hf:org/name").unwrap_err();
    assert!(matches!(&error, HubError::NoData { converted: true, .. }), "{error}");
    assert!(said(&error).contains("the hub has no converted copy"), "{error}");
}

#[test]
fn a_cached_data_set_needs_no_network() {
    let server = Server::start(&[("datasets/org/name", described())], Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    let train = files(&Hub::new(options.clone()), "hf:org/name").unwrap();
    let offline = Hub::new(HubOptions { offline: true, ..options });
    assert_eq!(files(&offline, "hf:org/name").unwrap(), train);
    assert_eq!(pinned(&offline, "hf:org/name").unwrap(), format!("hf:org/name@{COMMIT}"));
    let error = files(&offline, "hf:org/name:test").unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "known, but not downloaded: {error}");
    assert!(said(&error).contains("main/test.jsonl"), "{error}");
}

/// Data sets that a run pins one after another are of the same commit, even if the branch moves on in between.
#[test]
fn a_branch_is_looked_up_once() {
    let server = Server::start(&[("datasets/org/name", described())], Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    pinned(&hub, "hf:org/name").unwrap();
    pinned(&hub, "hf:org/name/main:test").unwrap();
    assert_eq!(server.count("/api/"), 1);
}
