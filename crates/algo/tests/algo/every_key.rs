//! The keys that have an effect on each method.

use rloom_algo::{Algorithm, AlgorithmSettings, Kind, LossKind, Method, PreferenceKind, RENAMED_KEYS, Value};

/// Dotted keys with their values, in the order in which the settings have them.
pub(crate) fn flat(settings: &AlgorithmSettings) -> Vec<(&'static str, Value)> {
    settings.values()
}

/// Every key with an effect on a method: its value in the preset, or `None` if it is optional and unset.
pub(crate) fn read_by(method: Method) -> Vec<(&'static str, Option<Value>)> {
    method.keys().unwrap().into_iter().map(|key| (key.key, key.default)).collect()
}

#[test]
fn no_key_of_a_preset_is_missed() {
    for &method in Method::ALL {
        let preset = Algorithm::preset(method).unwrap().to_settings().keys();
        let read: Vec<_> = read_by(method).into_iter().filter(|(_, v)| v.is_some()).map(|(k, _)| k).collect();
        assert_eq!(read, preset, "{method}");
    }
}

#[test]
fn every_key_is_documented() {
    for &method in Method::ALL {
        for key in method.keys().unwrap() {
            assert!(key.doc.len() > 10 && !key.doc.contains("  "), "{method}: {key:?}");
        }
    }
}

/// The schema that editors and the reference use has every key with its documentation and default.
#[test]
fn the_schema_has_every_key() {
    let schema = serde_json::to_value(schemars::schema_for!(AlgorithmSettings)).unwrap();
    // Documentation of several lines keeps its line breaks there.
    let text = schema.to_string().replace("\\n", " ");
    for &method in Method::ALL {
        for key in method.keys().unwrap() {
            assert!(text.contains(key.doc), "{method}: {}", key.key);
        }
    }
    let kinds = schema["$defs"]["loss"]["anyOf"].as_array().unwrap();
    assert_eq!(kinds.len(), 1 + LossKind::ALL.len());
    let cispo = kinds.iter().find(|kind| kind["properties"]["kind"]["const"] == "cispo").unwrap();
    assert_eq!(cispo["properties"]["weight_cap"]["default"], 5.0);
}

/// Recipes may omit the kind, so a key must have the same type in all kinds; the keys of a kind fit the capacity.
#[test]
fn a_key_has_one_type_in_all_kinds() {
    fn check<K: Kind>(kinds: &[K]) {
        let keys: Vec<_> = kinds.iter().flat_map(|kind| kind.keys()).collect();
        for key in &keys {
            let same = keys.iter().filter(|other| other.name == key.name);
            assert!(same.into_iter().all(|other| other.value_type == key.value_type), "{}", key.name);
        }
        for kind in kinds {
            assert!(kind.keys().len() <= 16, "{kind:?}");
        }
    }
    check(LossKind::ALL);
    check(PreferenceKind::ALL);
    check(rloom_algo::AdvantageKind::ALL);
}

#[test]
fn renamed_keys_exist_in_their_new_place() {
    for (old, new) in RENAMED_KEYS {
        let (table, key) = new.split_once('.').unwrap();
        let known = match table {
            "loss" => LossKind::all_keys().names().contains(&key),
            "advantage" => rloom_algo::AdvantageKind::all_keys().names().contains(&key),
            _ => false,
        };
        assert!(known, "{new}");
        assert!(serde_json::from_str::<AlgorithmSettings>(&format!("{{\"{old}\":1}}")).is_err(), "{old}");
    }
}
