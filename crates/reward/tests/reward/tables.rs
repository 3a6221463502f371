//! Components as tables of a recipe.

use rloom_reward::ComponentSettings;

fn read(json: &str) -> Result<ComponentSettings, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

#[test]
fn keys_may_come_before_the_kind() {
    let first = read(r#"{"kind": "numeric", "tolerance": 0.5, "name": "n", "weight": 2}"#).unwrap();
    let last = read(r#"{"tolerance": 0.5, "name": "n", "weight": 2, "kind": "numeric"}"#).unwrap();
    assert_eq!(first, last);
    let error = read(r#"{"tolerance": "high", "kind": "numeric"}"#).unwrap_err();
    assert!(error.starts_with("`tolerance`: invalid type: string \"high\", expected f64"), "{error}");
    // The kind decides who reads a key, wherever it stands.
    let error = read(r#"{"tolerance": 0.5, "kind": "exact"}"#).unwrap_err();
    assert!(error.contains("(keys of the `exact` reward)"), "{error}");
}

#[test]
fn misspelt_keys_and_keys_of_other_kinds_differ() {
    let misspelt = read(r#"{"kind": "exact", "ignore_cas": true}"#).unwrap_err();
    assert!(misspelt.starts_with("unknown field `ignore_cas`, expected one of `kind`, `name`, `weight`, "));
    assert!(misspelt.contains("`tolerance`"), "keys of all kinds are known: {misspelt}");
    let misspelt = read(r#"{"ignore_cas": true, "kind": "exact"}"#).unwrap_err();
    assert!(misspelt.starts_with("unknown field `ignore_cas`"), "{misspelt}");
    let other = read(r#"{"kind": "exact", "tolerance": 1.0}"#).unwrap_err();
    let own = "expected one of `extract`, `ignore_case`, `truncated` (keys of the `exact` reward)";
    assert!(other.starts_with(&format!("unknown field `tolerance`, {own}")), "{other}");
    let other = read(r#"{"kind": "environment", "tolerance": 1.0}"#).unwrap_err();
    assert!(other.contains("there are no fields (keys of the `environment` reward)"), "{other}");
}

#[test]
fn kinds_and_required_keys_must_be_given() {
    assert!(read(r#"{"name": "x"}"#).unwrap_err().contains("missing field `kind`"));
    assert!(
        read(r#"{"kind": "exakt"}"#)
            .unwrap_err()
            .contains("unknown variant `exakt`, expected one of `exact`")
    );
    assert!(read(r#"{"kind": "format"}"#).unwrap_err().contains("missing field `pattern`"));
    assert!(read("[]").unwrap_err().contains("expected a table"));
}
