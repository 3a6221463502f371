use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{Environment, Guess, GuessSettings, SingleTurn};

/// What the policy acts in: in a configuration a flat table of `kind` and the keys of that kind.
///
/// ```
/// # use rloom_env::EnvironmentSettings;
/// let settings: EnvironmentSettings = serde_json::from_str(r#"{ "kind": "guess", "max_turns": 6 }"#).unwrap();
/// assert_eq!(settings.max_turns(), 6);
/// assert_eq!(serde_json::from_str::<EnvironmentSettings>("{}").unwrap(), EnvironmentSettings::SingleTurn);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnvironmentSettings {
    /// A prompt, a completion, and that is all.
    #[default]
    SingleTurn,
    /// A game of guessing a number.
    Guess(GuessSettings),
}

impl EnvironmentSettings {
    /// Its name in configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SingleTurn => "single_turn",
            Self::Guess(_) => "guess",
        }
    }

    /// Checks each value's range; the error is the key and what is wrong with it.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::SingleTurn => Ok(()),
            Self::Guess(settings) => settings.validate(),
        }
    }

    /// Most turns that the policy has in an episode.
    pub fn max_turns(&self) -> usize {
        match self {
            Self::SingleTurn => 1,
            Self::Guess(settings) => settings.max_turns as usize,
        }
    }

    /// Whether it rewards single turns, and names the states that they are taken in.
    pub fn has_steps(&self) -> bool {
        match self {
            Self::SingleTurn => false,
            Self::Guess(_) => true,
        }
    }

    /// The characters that its observations are made of: what a tokenizer made from nothing needs.
    pub fn alphabet(&self) -> &'static str {
        match self {
            Self::SingleTurn => "",
            Self::Guess(_) => GuessSettings::ALPHABET,
        }
    }

    /// The environment.
    pub fn environment(&self) -> Arc<dyn Environment> {
        match self {
            Self::SingleTurn => Arc::new(SingleTurn),
            Self::Guess(settings) => Arc::new(Guess::new(*settings)),
        }
    }
}

/// Every key that some kind reads, with its type. Reading into this first lets the configuration reader point at the
/// very key that is misspelt or of the wrong type; the chosen kind then refuses the keys that are not its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: Option<KindName>,
    max_turns: Option<u32>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    #[default]
    SingleTurn,
    Guess,
}

/// The keys of [`EnvironmentSettings::SingleTurn`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

impl<'de> Deserialize<'de> for EnvironmentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_keys(&Keys::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn from_keys(keys: &Keys) -> Result<EnvironmentSettings, String> {
    let Ok(Value::Object(mut given)) = serde_json::to_value(keys) else {
        return Err("the environment is not a table".into());
    };
    given.retain(|key, value| !value.is_null() && key != "kind");
    match keys.kind.unwrap_or_default() {
        KindName::SingleTurn => {
            own::<NoKeys>(given, "single_turn").map(|NoKeys {}| EnvironmentSettings::SingleTurn)
        }
        KindName::Guess => own(given, "guess").map(EnvironmentSettings::Guess),
    }
}

/// Reads a kind's own keys; any other is one that it does not read.
fn own<T: DeserializeOwned>(given: Map<String, Value>, kind: &str) -> Result<T, String> {
    serde_json::from_value(Value::Object(given))
        .map_err(|e| format!("{e} (keys of the `{kind}` environment)"))
}

impl Serialize for EnvironmentSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = match self {
            Self::SingleTurn => Ok(Value::Null),
            Self::Guess(settings) => serde_json::to_value(settings),
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.name())?;
        if let Value::Object(keys) = own.map_err(S::Error::custom)? {
            for (key, value) in keys {
                map.serialize_entry(&key, &value)?;
            }
        }
        map.end()
    }
}
