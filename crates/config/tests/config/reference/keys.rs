//! The documented keys are the keys that recipes have.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use rloom_algo::Method;
use rloom_config::Config;
use rloom_config::reference::{EngineKind, KeyDoc, key_paths, keys, tables};

/// Maximum number of keys that apply to one method with each pair of engines.
const MAX_KEYS: [(EngineKind, usize); 2] = [(EngineKind::Embedded, 105), (EngineKind::TorchAndVllm, 115)];

/// Keys that select the engines.
const SELECTORS: [&str; 2] = ["rollout.engine", "trainer.backend"];

fn documented() -> Vec<KeyDoc> {
    tables().into_iter().flat_map(|table| table.keys).collect()
}

#[test]
fn every_key_is_documented() {
    for key in documented() {
        assert!(key.description.len() > 10, "{key:?}");
        let is_internal = key.description.contains("[`") || key.description.contains("::");
        assert!(!is_internal, "refers to an item of the source: {key:?}");
        assert!(!key.value_type.is_empty(), "{key:?}");
    }
}

#[test]
fn keys_are_documented_once() {
    let keys = documented();
    let paths: BTreeSet<&str> = keys.iter().map(|key| key.path.as_str()).collect();
    assert_eq!(paths.len(), keys.len());
}

#[test]
fn all_keys_of_the_recipes_are_documented() {
    let documented: BTreeSet<String> = documented().into_iter().map(|key| key.path).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    for recipe in ["arithmetic.toml", "gsm8k.toml", "guess.toml"] {
        let config = Config::load(&[folder.join(recipe)], &[] as &[&str]).unwrap();
        let undocumented: Vec<String> = key_paths(&config).difference(&documented).cloned().collect();
        assert!(undocumented.is_empty(), "{recipe}: {undocumented:?}");
    }
}

#[test]
fn a_method_has_about_a_hundred_keys() {
    for (engine, limit) in MAX_KEYS {
        let mut counts = String::new();
        let mut most = 0;
        for method in Method::ALL {
            let keys = keys(*method, engine).unwrap_or_else(|errors| panic!("{method}: {errors}"));
            let is_of_engine = |key: &&KeyDoc| !SELECTORS.contains(&key.path.as_str());
            let count = keys.iter().filter(is_of_engine).count();
            let _ = writeln!(counts, "{method}, {engine:?}: {count}");
            most = most.max(count);
        }
        assert!(most <= limit, "more than {limit} keys:\n{counts}");
    }
}

#[test]
fn recipes_have_about_a_hundred_keys() {
    // Staleness adds corrections, replacement its bound.
    let most = ["schedule.max_staleness=1", "schedule.cut_order=completion", "schedule.max_failures=4"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    for recipe in ["arithmetic.toml", "gsm8k.toml", "guess.toml"] {
        let config = Config::load(&[folder.join(recipe)], &most).unwrap();
        let count = key_paths(&config).len();
        assert!(count <= 124, "{recipe}: {count} keys");
    }
}
