use std::sync::Arc;
use std::time::Duration;

use rloom_core::SettingError;
use rloom_function::{FunctionError, Host, PythonEnvironment};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::python;
use crate::{Environment, Guess, GuessSettings, PythonPlays, SingleTurn};

/// Settings of an environment. In a configuration they are a flat table with `kind` and the keys of that kind.
///
/// ```
/// # use rloom_env::EnvironmentSettings;
/// let settings: EnvironmentSettings = serde_json::from_str(r#"{ "kind": "guess", "max_turns": 6 }"#).unwrap();
/// assert_eq!(settings.max_turns(), 6);
/// assert_eq!(serde_json::from_str::<EnvironmentSettings>("{}").unwrap(), EnvironmentSettings::SingleTurn);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EnvironmentSettings {
    /// One completion per prompt.
    #[default]
    SingleTurn,
    /// The number-guessing game.
    Guess(GuessSettings),
    /// A Python class or generator function.
    Python(PythonEnvironment),
}

impl EnvironmentSettings {
    /// Name in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SingleTurn => "single_turn",
            Self::Guess(_) => "guess",
            Self::Python(_) => "python",
        }
    }

    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        match self {
            Self::SingleTurn => Ok(()),
            Self::Guess(settings) => settings.validate(),
            Self::Python(settings) => settings.validate(),
        }
    }

    /// Maximum number of turns in an episode.
    pub fn max_turns(&self) -> usize {
        match self {
            Self::SingleTurn => 1,
            Self::Guess(settings) => settings.max_turns as usize,
            Self::Python(settings) => settings.max_turns as usize,
        }
    }

    /// True if the environment gives step rewards.
    pub fn has_steps(&self) -> bool {
        match self {
            Self::SingleTurn => false,
            Self::Guess(_) => true,
            Self::Python(settings) => settings.rewards_turns,
        }
    }

    /// True if the environment reads the reference answers of tasks.
    pub fn reads_answer(&self) -> bool {
        match self {
            Self::SingleTurn | Self::Python(_) => false,
            Self::Guess(_) => true,
        }
    }

    /// All characters of the observations, for the alphabet of a character tokenizer.
    pub fn alphabet(&self) -> &str {
        match self {
            Self::SingleTurn => "",
            Self::Guess(_) => GuessSettings::ALPHABET,
            Self::Python(settings) => &settings.alphabet,
        }
    }

    /// Makes the path of a Python file absolute, so that it does not depend on the working directory.
    pub fn make_absolute(&mut self) {
        if let Self::Python(settings) = self {
            settings.make_absolute();
        }
    }

    /// The Python function, if it is one: `file.py:name` or `caller:name`.
    pub fn python_function(&self) -> Option<&str> {
        match self {
            Self::SingleTurn | Self::Guess(_) => None,
            Self::Python(settings) => Some(&settings.function),
        }
    }

    /// Number of processes of a Python function; `None` if it is none, or one of the caller's process.
    pub fn processes(&self) -> Option<usize> {
        match self {
            Self::SingleTurn | Self::Guess(_) => None,
            Self::Python(settings) => settings.processes(),
        }
    }

    /// Loads the Python function, if it is one, on the machines of `host` or on this one.
    pub fn check(&self, host: Option<Arc<dyn Host>>) -> Result<(), EnvironmentUnusable> {
        match self {
            Self::SingleTurn | Self::Guess(_) => Ok(()),
            // The time that a worker has to start does not depend on the timeout of its answers.
            Self::Python(settings) => Ok(python::pool(settings, Duration::ZERO, host)?.check()?),
        }
    }

    /// Creates the environment; `timeout` limits each answer of a Python function, whose processes start on the machines of
    /// `host` or on this one.
    pub fn environment(
        &self,
        timeout: Duration,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Ok(match self {
            Self::SingleTurn => Arc::new(SingleTurn),
            Self::Guess(settings) => Arc::new(Guess::new(*settings)),
            Self::Python(settings) => Arc::new(PythonPlays::new(settings, timeout, host)?),
        })
    }
}

/// The keys of all kinds, with their types. Deserialising this first reports misspelt keys and wrong types at the right
/// place in the file; the selected kind then rejects the keys of the others.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: Option<KindName>,
    max_turns: Option<u32>,
    function: Option<String>,
    workers: Option<u32>,
    python: Option<String>,
    rewards_turns: Option<bool>,
    alphabet: Option<String>,
    recycle_calls: Option<u64>,
    memory_mib: Option<u64>,
}

/// An environment that cannot be created.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error("`environment`: {0}")]
#[diagnostic(forward(0))]
pub struct EnvironmentUnusable(#[from] FunctionError);

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    #[default]
    SingleTurn,
    Guess,
    Python,
}

/// The keys of [`EnvironmentSettings::SingleTurn`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

impl<'de> Deserialize<'de> for EnvironmentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_keys(&Keys::deserialize(deserializer)?)
    }
}

fn from_keys<E: Error>(keys: &Keys) -> Result<EnvironmentSettings, E> {
    let Value::Object(mut given) = serde_json::to_value(keys).map_err(E::custom)? else {
        return Err(E::custom("the environment is not a table"));
    };
    given.retain(|key, value| !value.is_null() && key != "kind");
    match keys.kind.unwrap_or_default() {
        KindName::SingleTurn => {
            from_own_keys::<NoKeys, E>(given, "single_turn").map(|NoKeys {}| EnvironmentSettings::SingleTurn)
        }
        KindName::Guess => from_own_keys(given, "guess").map(EnvironmentSettings::Guess),
        KindName::Python => from_own_keys(given, "python").map(EnvironmentSettings::Python),
    }
}

/// Deserialises the keys of one kind; keys of other kinds are errors.
fn from_own_keys<T: DeserializeOwned, E: Error>(given: Map<String, Value>, kind: &str) -> Result<T, E> {
    serde_json::from_value(Value::Object(given))
        .map_err(|e| E::custom(format_args!("{e} (keys of the `{kind}` environment)")))
}

impl Serialize for EnvironmentSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = match self {
            Self::SingleTurn => Ok(Value::Null),
            Self::Guess(settings) => serde_json::to_value(settings),
            Self::Python(settings) => serde_json::to_value(settings),
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

/// The flat table as a schema: one alternative per kind.
impl JsonSchema for EnvironmentSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EnvironmentSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        KindTable::json_schema(generator)
    }
}

/// The environment of a stage.
#[derive(JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum KindTable {
    /// One completion per prompt. The default.
    SingleTurn,
    /// The number-guessing game.
    Guess(GuessSettings),
    /// A Python class or generator function.
    Python(PythonEnvironment),
}
