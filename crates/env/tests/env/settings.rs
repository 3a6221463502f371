//! Settings of environments, as in a configuration.

use std::time::Duration;

use rloom_env::{EnvironmentSettings, GuessSettings};

fn read(json: &str) -> Result<EnvironmentSettings, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

#[test]
fn settings_round_trip() {
    let python = read(r#"{"kind": "python", "function": "env.py:Env", "max_turns": 3}"#).unwrap();
    assert_eq!((python.max_turns(), python.has_steps()), (3, true));
    for settings in [
        EnvironmentSettings::SingleTurn,
        EnvironmentSettings::Guess(GuessSettings { max_turns: 7, ..GuessSettings::default() }),
        python,
    ] {
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(read(&json), Ok(settings.clone()), "{json}");
        assert_eq!(settings.environment(Duration::MAX, None).unwrap().name(), settings.name());
        settings.validate().unwrap();
    }
    assert_eq!(read("{}"), Ok(EnvironmentSettings::default()));
    assert_eq!(read(r#"{"kind": "guess"}"#), Ok(EnvironmentSettings::Guess(GuessSettings::default())));
}

#[test]
fn keys_of_another_kind_are_refused() {
    for (json, expected) in [
        (r#"{"kind": "ges"}"#, "unknown variant `ges`, expected one of `single_turn`, `guess`"),
        (r#"{"max_turns": 3}"#, "unknown field `max_turns`, there are no fields (keys of the `single_turn`"),
        (
            r#"{"kind": "guess", "turns": 3}"#,
            "unknown field `turns`, expected one of `kind`, `max_turns`, `history`",
        ),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.starts_with(expected), "{json}: {error}");
    }
    for max_turns in [0, 1001] {
        let settings = EnvironmentSettings::Guess(GuessSettings { max_turns, ..GuessSettings::default() });
        assert_eq!(settings.validate().unwrap_err().key, "max_turns");
    }
}
