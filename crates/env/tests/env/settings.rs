//! Settings of environments, as in a configuration.

use rloom_env::{EnvironmentSettings, GuessSettings};

fn read(json: &str) -> Result<EnvironmentSettings, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

#[test]
fn settings_round_trip() {
    for settings in
        [EnvironmentSettings::SingleTurn, EnvironmentSettings::Guess(GuessSettings { max_turns: 7 })]
    {
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(read(&json), Ok(settings), "{json}");
        assert_eq!(settings.environment().name(), settings.name());
        settings.validate().unwrap();
    }
    assert_eq!(read("{}"), Ok(EnvironmentSettings::default()));
    assert_eq!(read(r#"{"kind": "guess"}"#), Ok(EnvironmentSettings::Guess(GuessSettings { max_turns: 5 })));
}

#[test]
fn keys_of_another_kind_are_refused() {
    for (json, expected) in [
        (r#"{"kind": "ges"}"#, "unknown variant `ges`, expected `single_turn` or `guess`"),
        (r#"{"max_turns": 3}"#, "unknown field `max_turns`, there are no fields (keys of the `single_turn`"),
        (r#"{"kind": "guess", "turns": 3}"#, "unknown field `turns`, expected `kind` or `max_turns`"),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.starts_with(expected), "{json}: {error}");
    }
    for max_turns in [0, 1001] {
        let settings = EnvironmentSettings::Guess(GuessSettings { max_turns });
        assert_eq!(settings.validate().unwrap_err().key, "max_turns");
    }
}
