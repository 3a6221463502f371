//! Settings of judges.

use rloom_reward::RewardSettings;
use serde_json::{Value, json};

fn error(keys: &Value) -> String {
    let mut component = json!({ "kind": "judge", "model": "m", "url": "http://127.0.0.1:1/v1" });
    for (key, value) in keys.as_object().unwrap() {
        component[key] = value.clone();
    }
    let settings: Result<RewardSettings, _> = serde_json::from_value(json!({ "components": [component] }));
    match settings {
        Ok(settings) => settings.validate().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn settings_are_checked() {
    for (keys, expected) in [
        (json!({ "url": "127.0.0.1" }), "`url`: must be an address that begins with http:// or https://"),
        (json!({ "model": " " }), "`model`: must be a name"),
        (json!({ "workers": 0 }), "`workers`: must be between 1 and 1024"),
        (json!({ "max_tokens": 0 }), "`max_tokens`: must be between 1 and"),
        (json!({ "limits": { "rpm": 1 } }), "unknown field `rpm`"),
        (json!({ "limits": { "requests_per_minute": -1 } }), "`limits.requests_per_minute`"),
        (json!({ "cache": { "entries": 0, "file": "f" } }), "`cache.entries`"),
        (json!({ "choices": { "a": 1 } }), "`choices`: has no effect unless `verdict = \"choices\"`"),
        (json!({ "scale": [1, 5] }), "`scale`: has no effect unless `verdict = \"scale\"`"),
        (json!({ "against": "group" }), "`against`: has no effect unless `verdict = \"pairwise\"`"),
        (
            json!({ "verdict": "pairwise", "opponents": 2 }),
            "`opponents`: has no effect unless `against = \"group\"`",
        ),
        (
            json!({ "verdict": "scale", "logprobs": true }),
            "`logprobs`: has no effect unless `verdict = \"yes_no\"`",
        ),
        (json!({ "verdict": "scale", "scale": [3, 3] }), "`scale`: must be two different numbers"),
        (json!({ "verdict": "choices" }), "`choices`: the list is empty"),
        (
            json!({ "verdict": "choices", "choices": { "a": 1, "A": 0 } }),
            "`choices`: lists \"a\" more than once",
        ),
        (json!({ "verdict": "rubric" }), "`criteria`: the list is empty"),
        (json!({ "verdict": "rubric", "criteria": [{ "name": "a", "weight": 0 }] }), "`criteria`: must be"),
        (json!({ "rubric": "r", "rubric_field": "f" }), "`rubric`: cannot be combined with `rubric_field`"),
        (
            json!({ "max_false_positive_rate": 0.1 }),
            "`max_false_positive_rate`: has no effect unless `calibration",
        ),
        (
            json!({ "calibration": "f", "max_false_positive_rate": 2 }),
            "`max_false_positive_rate`: must be between 0 and 1",
        ),
        (json!({ "url": null, "logprobs": true }), "`logprobs`: has no effect unless `url"),
        (json!({ "url": null, "api_key_env": "KEY" }), "`api_key_env`: has no effect unless `url"),
        (json!({ "verdict": "maybe" }), "unknown variant `maybe`"),
        (json!({ "pattern": "*" }), "unknown field `pattern`"),
    ] {
        let error = error(&keys);
        assert!(error.contains(expected), "{keys}: {error}");
    }
}

/// A key in place of the name of its variable is not repeated.
#[test]
fn a_key_in_the_recipe_is_not_repeated() {
    let error = error(&json!({ "api_key_env": "sk-abc-123" }));
    assert!(
        error.contains("must be the name of an environment variable") && !error.contains("abc"),
        "{error}"
    );
}

#[test]
fn settings_survive_a_round_trip() {
    let component = json!({
        "kind": "judge", "name": "j", "weight": 2.0, "model": "m", "verdict": "rubric", "scale": [1.0, 5.0],
        "criteria": [{ "name": "a", "description": "d", "weight": 1.0 }], "cache": { "entries": 7, "file": "/f" },
    });
    let settings: RewardSettings = serde_json::from_value(json!({ "components": [component] })).unwrap();
    let written = serde_json::to_value(&settings).unwrap();
    assert_eq!(serde_json::from_value::<RewardSettings>(written).unwrap(), settings);
}
