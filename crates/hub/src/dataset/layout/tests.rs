use std::collections::BTreeMap;

use miette::Diagnostic as _;
use serde::Deserialize;

use super::super::card;
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const ALL_FORMATS: &[&str] = &["parquet", "jsonl", "csv"];

/// A repository, and what Python's `datasets` reads from it.
#[derive(Deserialize)]
struct Case {
    card: Option<String>,
    files: Vec<String>,
    default: Option<String>,
    subsets: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

fn listing(files: &[&str]) -> Listing {
    Listing::from_paths(COMMIT, files.iter().map(|file| (*file).to_owned()).collect())
}

fn reference(text: &str) -> DatasetReference {
    format!("hf:org/name{text}").parse().unwrap()
}

/// Paths that are selected, or the formats that are not supported.
fn selected(
    listing: &Listing,
    configs: &[CardConfig],
    dataset: &str,
) -> Result<Result<Vec<String>, Vec<String>>, HubError> {
    let formats = &["parquet", "jsonl"];
    select(listing, configs, &reference(dataset), DefaultSplit::Train, formats).map(|selection| {
        match selection {
            Selection::Files(files) => Ok(files.into_iter().map(|file| file.path.clone()).collect()),
            Selection::Unsupported(formats) => Err(formats),
        }
    })
}

#[test]
fn files_are_those_that_datasets_reads() {
    let golden = include_str!("../../../tests/golden/dataset_layouts.json");
    let cases: BTreeMap<String, Case> = serde_json::from_str(golden).unwrap();
    assert!(cases.len() > 10);
    for (name, case) in cases {
        let listing = Listing::from_paths(COMMIT, case.files);
        let configs = card::configs(case.card.as_deref().unwrap_or_default()).unwrap();
        let paths = |dataset: &str| {
            let dataset = reference(dataset);
            match select(&listing, &configs, &dataset, DefaultSplit::Train, ALL_FORMATS).unwrap() {
                Selection::Files(files) => {
                    files.into_iter().map(|file| file.path.clone()).collect::<Vec<_>>()
                }
                Selection::Unsupported(formats) => panic!("{name} {dataset}: {formats:?}"),
            }
        };
        for (subset, splits) in &case.subsets {
            for (split, files) in splits {
                assert_eq!(&paths(&format!("/{subset}:{split}")), files, "{name} {subset} {split}");
            }
            let unknown = reference(&format!("/{subset}:nosuch"));
            let Err(HubError::Split { mut available, .. }) =
                select(&listing, &configs, &unknown, DefaultSplit::Train, ALL_FORMATS)
            else {
                panic!("{name} {subset}")
            };
            available.sort();
            assert!(available.iter().eq(splits.keys()), "{name} {subset}: {available:?}");
        }
        if let Some(default) = case.default {
            let (split, files) = case.subsets[&default].iter().next().unwrap();
            assert_eq!(&paths(&format!(":{split}")), files, "{name}: the default subset");
        }
    }
}

#[test]
fn subsets_and_splits_are_listed_in_errors() {
    let card = "---\nconfigs:\n- config_name: a\n  data_files: [{split: dev, path: a/*}, {split: test, path: b/*}]\n\
                - config_name: b\n---\n";
    let configs = card::configs(card).unwrap();
    let listing = listing(&["a/x.jsonl", "b/x.jsonl"]);
    let error = |dataset| {
        let error = selected(&listing, &configs, dataset).unwrap_err();
        format!("{error}\nhelp: {}", error.help().unwrap())
    };
    let hint = "help: write `hf:org/name/<subset>`";
    assert_eq!(error(""), format!("org/name: several subsets; available: `a`, `b`\n{hint}"));
    assert_eq!(error("/c"), format!("org/name: no subset `c`; available: `a`, `b`\n{hint}"));
    let hint = "help: write `hf:org/name/a:<split>`";
    assert_eq!(error("/a"), format!("org/name/a: several splits; available: `dev`, `test`\n{hint}"));
    assert_eq!(error("/a:train"), format!("org/name/a: no split `train`; available: `dev`, `test`\n{hint}"));
    assert_eq!(selected(&listing, &configs, "/a:dev").unwrap().unwrap(), ["a/x.jsonl"]);
}

#[test]
fn a_folder_is_a_subset_without_a_card() {
    let listing = listing(&["de/train.jsonl", "en/deep/train.jsonl", "en/deep/test.jsonl"]);
    let files = |dataset| selected(&listing, &[], dataset).unwrap().unwrap();
    assert_eq!(files("/en/deep:test"), ["en/deep/test.jsonl"]);
    assert_eq!(files("/de"), ["de/train.jsonl"]);
    assert_eq!(files("/default").len(), 2);
    let error = selected(&listing, &[], "/fr").unwrap_err().to_string();
    assert!(error.contains("no subset `fr`; available: `de`, `en`, `default`"), "{error}");
}

#[test]
fn converted_files_have_subset_and_split_as_folders() {
    let converted = listing(&[
        "main/partial-test/0000.parquet",
        "main/train/0000.parquet",
        "main/train/0001.parquet",
        "other/train/0000.parquet",
    ]);
    let files = |dataset| selected(&converted, &[], dataset).unwrap().unwrap();
    assert_eq!(files("/main"), ["main/train/0000.parquet", "main/train/0001.parquet"]);
    assert_eq!(files("/main:partial-test"), ["main/partial-test/0000.parquet"]);
    assert_eq!(files("/other:train"), ["other/train/0000.parquet"]);
    let error = selected(&converted, &[], ":train").unwrap_err().to_string();
    assert!(error.contains("several subsets; available: `main`, `other`"), "{error}");
}

/// A split that must be given is not guessed, even if there is only one.
#[test]
fn a_required_split_must_be_given() {
    let listing = listing(&["questions.jsonl"]);
    let formats = &["jsonl"];
    let result = select(&listing, &[], &reference(""), DefaultSplit::Required, formats);
    assert!(matches!(result, Err(HubError::Split { requested: None, .. })));
    let result = select(&listing, &[], &reference(":train"), DefaultSplit::Required, formats);
    assert!(matches!(result, Ok(Selection::Files(files)) if files.len() == 1));
}

#[test]
fn unsupported_formats_are_reported() {
    for (files, formats) in [
        (&["a.csv", "b.csv", "c.jsonl"][..], &["csv"][..]),
        (&["train.json", "train.1.jsonl", "test.jsonl"], &["json", "jsonl"]),
        (&["a.jsonl.gz"], &["jsonl.gz"]),
        (&["script.py", "config.json"], &[]),
    ] {
        let result = selected(&listing(files), &[], ":train").unwrap();
        assert_eq!(result.unwrap_err(), formats, "{files:?}");
    }
}

#[test]
fn missing_shards_are_found() {
    let shard =
        |n: usize| ListedFile { path: format!("d/t-{n:05}-of-00003-hash{n}.parquet"), ..Default::default() };
    assert_eq!(missing_shard(&[shard(0), shard(2)]).as_deref(), Some("d/t-00001-of-00003"));
    assert_eq!(missing_shard(&[shard(0), shard(1), shard(2)]), None);
    let other = ["one-of-us.jsonl", "ünë-of-00003", "plain"]
        .map(|path| ListedFile { path: path.into(), ..Default::default() });
    assert_eq!(missing_shard(&other), None);
}
