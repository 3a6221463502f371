//! Several sources with weights: their order, their indices, their held-out tasks.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use rloom_core::Draw;
use rloom_data::{Cursor, CursorError, DataSettings, Dataset, Order, Source, Split};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

fn settings(json: &str) -> DataSettings {
    serde_json::from_str(json).unwrap()
}

fn rows(folder: &Folder, name: &str, domains: &[&str]) -> String {
    let row = |(i, domain): (usize, &&str)| {
        format!("{{\"prompt\": \"{name}{i}\", \"answer\": \"{i}\", \"kind\": \"{domain}\"}}\n")
    };
    let text: String = domains.iter().enumerate().map(row).collect();
    folder.file(&format!("{name}.jsonl"), &text).display().to_string()
}

/// Three generators, one of which has its domain from the settings.
fn generators() -> DataSettings {
    settings(
        r#"{"sources": [
            {"generator": "arithmetic", "domain": "sums", "weight": 0.5},
            {"generator": "sorting", "weight": 0.3},
            {"generator": "countdown", "weight": 0.2}
        ]}"#,
    )
}

#[test]
fn sources_take_turns_exactly_over_time() {
    let dataset = Dataset::open(&generators(), Split::Train, 3).unwrap();
    let cursor = Cursor::over(&dataset, &[], Order::Shuffled, 3, 0).unwrap();
    let mut counts = BTreeMap::new();
    for n in 1..=1000_u64 {
        let task = dataset.get(cursor.at(n - 1).index).unwrap();
        *counts.entry(task.domain).or_insert(0.0) += 1.0;
        for (domain, share) in [("sums", 0.5), ("sorting", 0.3), ("countdown", 0.2)] {
            let count = counts.get(domain).copied().unwrap_or(0.0);
            assert!((count - share * n as f64).abs() < 1.0, "{domain} after {n}");
        }
    }
}

#[test]
fn the_order_is_a_function_of_the_position() {
    let dataset = Dataset::open(&generators(), Split::Train, 3).unwrap();
    let cursor = || Cursor::over(&dataset, &[], Order::Shuffled, 3, 0).unwrap();
    let whole: Vec<_> = (0..300).map(|position| cursor().at(position)).collect();
    let from_the_end = cursor();
    for position in (0..300).rev() {
        assert_eq!(from_the_end.at(position), whole[position as usize]);
    }
    let saved = cursor().fingerprint().clone();
    from_the_end.verify(&saved).unwrap();
    let text = serde_json::to_string(&saved).unwrap();
    assert_eq!(serde_json::from_str::<rloom_data::CursorFingerprint>(&text).unwrap(), saved);
}

#[test]
fn other_weights_are_other_data() {
    let fingerprint = |json: &str| {
        let dataset = Dataset::open(&settings(json), Split::Train, 3).unwrap();
        Cursor::over(&dataset, &[], Order::Shuffled, 3, 0).unwrap()
    };
    let two = |weight: f64| {
        format!(
            r#"{{"sources": [{{"generator": "sorting"}}, {{"generator": "countdown", "weight": {weight}}}]}}"#
        )
    };
    let saved = fingerprint(&two(2.0));
    let error = fingerprint(&two(3.0)).verify(saved.fingerprint()).unwrap_err().to_string();
    assert!(error.contains("source 2 was") && error.contains("weight 2, now it is"), "{error}");
    fingerprint(&two(2.0)).verify(saved.fingerprint()).unwrap();
}

#[test]
fn a_mixture_of_one_source_has_its_order() {
    let alone = Dataset::open(&settings(r#"{"generator": "sorting"}"#), Split::Train, 3).unwrap();
    let mixed =
        Dataset::open(&settings(r#"{"sources": [{"generator": "sorting"}]}"#), Split::Train, 3).unwrap();
    let cursors = [&alone, &mixed].map(|d| Cursor::over(d, &[], Order::Shuffled, 3, 1).unwrap());
    assert_eq!(cursors[0].fingerprint(), cursors[1].fingerprint());
    assert!((0..200).all(|n| cursors[0].at(n) == cursors[1].at(n)));
    assert_eq!(
        cursors[0].fingerprint(),
        Cursor::new(alone.len(), Order::Shuffled, 3, 1).unwrap().fingerprint()
    );
}

#[test]
fn every_task_of_every_source_is_used_once_per_epoch() {
    let folder = Folder::new();
    let (a, b) = (rows(&folder, "a", &["x"; 7]), rows(&folder, "b", &["y"; 3]));
    let data = settings(&format!(
        r#"{{"sources": [{{"path": "{a}", "weight": 7.0}}, {{"path": "{b}", "weight": 3.0}}]}}"#
    ));
    let dataset = Dataset::open(&data, Split::Train, 0).unwrap();
    let cursor = Cursor::over(&dataset, &[], Order::Shuffled, 0, 0).unwrap();
    for epoch in 0..4 {
        let items: Vec<_> = (epoch * 10..epoch * 10 + 10).map(|n| cursor.at(n)).collect();
        assert!(items.iter().all(|item| item.epoch == epoch));
        let mut positions: Vec<u64> = items.iter().map(|item| item.index).collect();
        positions.sort_unstable();
        assert_eq!(positions, (0..10).collect::<Vec<u64>>());
    }
    let indices: Vec<u64> = dataset.iter().map(|task| task.unwrap().index).collect();
    assert_eq!(indices, (0..10).collect::<Vec<u64>>());
    for task in dataset.iter() {
        let task = task.unwrap();
        assert_eq!(dataset.find(task.index).unwrap(), Some(task));
    }
    assert_eq!(dataset.find(10).unwrap(), None);
    assert!(dataset.location(8).unwrap().to_string().ends_with("b.jsonl:2"));
}

#[test]
fn each_domain_with_a_quota_has_its_own_order() {
    let folder = Folder::new();
    let a = rows(&folder, "a", &["x", "y", "x", "x", "y"]);
    let b = rows(&folder, "b", &["y", "y", "x"]);
    let data = settings(&format!(
        r#"{{"sources": [{{"path": "{a}", "domain_field": "kind"}}, {{"path": "{b}", "domain_field": "kind"}}]}}"#
    ));
    let dataset = Dataset::open(&data, Split::Train, 0).unwrap();
    let quotas = ["y".to_owned(), "x".to_owned()];
    let cursor = Cursor::over(&dataset, &quotas, Order::Shuffled, 0, 0).unwrap();
    for (domain, name) in (0..).zip(&quotas) {
        let draws = (0..200).map(|position| cursor.drawn(Draw { domain, position }).index);
        let tasks: Vec<_> = draws.map(|position| dataset.get(position).unwrap()).collect();
        assert!(tasks.iter().all(|task| task.domain == *name));
        // Both sources take turns.
        let of_first = tasks.iter().filter(|task| task.index < 5).count();
        assert_eq!(of_first, 100);
    }
    let missing = Cursor::over(&dataset, &quotas[..1], Order::Shuffled, 0, 0).unwrap_err();
    assert_eq!(missing, CursorError::NoQuota { domain: "x".into() });
    let unknown = [&quotas[..], &["z".to_owned()]].concat();
    let error = Cursor::over(&dataset, &unknown, Order::Shuffled, 0, 0).unwrap_err().to_string();
    assert_eq!(error, "the data has no task of the domain `z`, which has a quota; its domains are `x`, `y`");
}

#[test]
fn an_evaluation_takes_tasks_of_every_source() {
    let folder = Folder::new();
    let (a, b) = (rows(&folder, "a", &["x"; 10]), rows(&folder, "b", &["y"; 3]));
    let data = settings(&format!(
        r#"{{"sources": [{{"path": "{a}", "weight": 1.0}}, {{"path": "{b}", "weight": 2.0}}]}}"#
    ));
    let dataset = Dataset::open(&data, Split::Train, 0).unwrap();
    let of_second = |count| dataset.selection(count).iter().filter(|&&position| position >= 10).count();
    assert_eq!((of_second(3), of_second(4), of_second(9), dataset.selection(9).len()), (2, 3, 3, 9));
    let all = dataset.selection(100);
    assert_eq!(all.len(), 13);
    let alone = Dataset::open(&settings(&format!(r#"{{"path": "{a}"}}"#)), Split::Train, 0).unwrap();
    assert_eq!(alone.selection(4), [0, 1, 2, 3]);
}

#[test]
fn settings_of_mixtures_are_strict() {
    let error = |json: &str| serde_json::from_str::<DataSettings>(json).unwrap_err().to_string();
    assert!(error(r#"{"generator": "sorting", "weight": 2.0}"#).contains("`weight` belongs to an entry"));
    assert!(error(r#"{"sources": []}"#).contains("`sources` is empty"));
    let beside = error(r#"{"sources": [{"generator": "sorting"}], "limit": 3}"#);
    assert!(beside.contains("`limit` belongs to an entry of `sources`"), "{beside}");
    let nested = error(r#"{"sources": [{"sources": [{"generator": "sorting"}]}]}"#);
    assert!(nested.contains("cannot contain other"), "{nested}");
    let negative = settings(r#"{"sources": [{"generator": "sorting", "weight": -1.0}]}"#);
    assert!(negative.validate().unwrap_err().to_string().contains("`weight`"));
    let data = generators();
    let again: DataSettings = serde_json::from_str(&serde_json::to_string(&data).unwrap()).unwrap();
    assert_eq!(again, data);
    assert!(matches!(&data.source, Source::Mixture(sources) if sources.len() == 3));
    assert!(data.alphabet().unwrap().contains('+') && data.has_held_out());
}
