use serde::de::{DeserializeOwned, Error as _};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    Countdown, EnvironmentReward, Exact, Extract, Format, Length, Math, Numeric, Random, Reward, RewardError,
    Truncated,
};

/// What happens when a component fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The run stops and says where.
    #[default]
    Fatal,
    /// The component does not apply to that completion; how often is counted.
    Skip,
}

/// How completions are rewarded: a weighted sum of named components.
///
/// ```
/// # use rloom_reward::RewardSettings;
/// let settings: RewardSettings = serde_json::from_str(
///     r#"{ "components": [{ "kind": "math" }, { "kind": "length", "weight": 0.5, "max_tokens": 512 }] }"#,
/// )
/// .unwrap();
/// assert_eq!(settings.components[1].name, "length");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardSettings {
    /// The parts of the sum.
    pub components: Vec<ComponentSettings>,
    /// The name of the component that says whether a task was solved: what evaluation counts and what dynamic
    /// sampling looks at. The first verifier when not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// What happens when a component fails: gives an error or a value that is not finite, panics, or does not answer
    /// within the deadline.
    #[serde(default)]
    pub on_error: OnError,
    /// Longest wait for the judgement of one completion (seconds).
    #[serde(default = "default_deadline")]
    pub deadline_seconds: f64,
}

fn default_deadline() -> f64 {
    60.0
}

/// One part of the sum: in a configuration a flat table of `kind`, `name`, `weight` and the keys of that
/// kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentSettings {
    /// Its name, as `reward/<name>` shows it; its kind when not set.
    pub name: String,
    /// Its weight in the sum; 1 when not set. 0 shows it without rewarding it.
    pub weight: f64,
    /// What it judges by.
    pub kind: Kind,
}

/// What a component judges by.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// The answer, character by character.
    Exact(Exact),
    /// The answer as a number.
    Numeric(Numeric),
    /// The answer as a mathematical expression.
    Math(Math),
    /// An expression that uses given numbers to reach a target.
    Countdown(Countdown),
    /// What the environment rewarded its turns with.
    Environment(EnvironmentReward),
    /// The shape of the completion.
    Format(Format),
    /// How many tokens it has.
    Length(Length),
    /// A coin toss.
    Random(Random),
}

impl Kind {
    /// Its name in configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exact(_) => "exact",
            Self::Numeric(_) => "numeric",
            Self::Math(_) => "math",
            Self::Countdown(_) => "countdown",
            Self::Environment(_) => "environment",
            Self::Format(_) => "format",
            Self::Length(_) => "length",
            Self::Random(_) => "random",
        }
    }

    /// Whether it can say that a task is solved.
    pub fn is_verifier(&self) -> bool {
        self.as_reward().is_verifier()
    }

    fn as_reward(&self) -> &dyn Reward {
        match self {
            Self::Exact(r) => r,
            Self::Numeric(r) => r,
            Self::Math(r) => r,
            Self::Countdown(r) => r,
            Self::Environment(r) => r,
            Self::Format(r) => r,
            Self::Length(r) => r,
            Self::Random(r) => r,
        }
    }

    pub(crate) fn reward(&self) -> Box<dyn Reward> {
        match self.clone() {
            Self::Exact(r) => Box::new(r),
            Self::Numeric(r) => Box::new(r),
            Self::Math(r) => Box::new(r),
            Self::Countdown(r) => Box::new(r),
            Self::Environment(r) => Box::new(r),
            Self::Format(r) => Box::new(r),
            Self::Length(r) => Box::new(r),
            Self::Random(r) => Box::new(r),
        }
    }
}

impl From<Kind> for ComponentSettings {
    fn from(kind: Kind) -> Self {
        Self { name: kind.name().to_owned(), weight: 1.0, kind }
    }
}

impl RewardSettings {
    /// One component with weight 1.
    pub fn of(kind: Kind) -> Self {
        Self {
            components: vec![kind.into()],
            outcome: None,
            on_error: OnError::Fatal,
            deadline_seconds: default_deadline(),
        }
    }

    /// Checks the settings against each other; messages name the key.
    pub fn validate(&self) -> Result<(), RewardError> {
        let refuse = |message: String| Err(RewardError::Settings(message));
        if self.components.is_empty() {
            return refuse("`components`: there is none, so nothing could be rewarded".into());
        }
        for (i, component) in self.components.iter().enumerate() {
            let name = &component.name;
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
                return refuse(format!(
                    "`name`: {name:?} is not a name\nhint: use letters, digits, `_`, `-` and `.`"
                ));
            }
            if self.components[..i].iter().any(|c| c.name == *name) {
                return refuse(format!(
                    "`components`: two of them are called `{name}`\nhint: give each a `name` of its own"
                ));
            }
            if !component.weight.is_finite() {
                return refuse(format!("`weight` of `{name}`: {} is not finite", component.weight));
            }
            component
                .kind
                .as_reward()
                .validate()
                .map_err(|problem| RewardError::Settings(format!("component `{name}`: {problem}")))?;
        }
        // A year: keeps the value inside what clocks can add.
        if !(self.deadline_seconds > 0.0 && self.deadline_seconds <= 31_536_000.0) {
            let given = self.deadline_seconds;
            return refuse(format!("`deadline_seconds`: {given} is not above 0 and at most 31536000"));
        }
        let Some(outcome) = &self.outcome else { return Ok(()) };
        match self.components.iter().find(|c| c.name == *outcome) {
            None => refuse(format!("`outcome`: no component is called `{outcome}`")),
            Some(c) if !c.kind.is_verifier() => {
                refuse(format!("`outcome`: `{outcome}` does not say whether a task was solved"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether one of its components says if a task was solved.
    pub fn has_verifier(&self) -> bool {
        self.outcome_index().is_some()
    }

    /// The weight of the environment's step rewards; `None` where no component reads them.
    pub fn environment_weight(&self) -> Option<f64> {
        self.components.iter().find(|c| matches!(c.kind, Kind::Environment(_))).map(|c| c.weight)
    }

    pub(crate) fn outcome_index(&self) -> Option<usize> {
        self.components.iter().position(|c| match &self.outcome {
            Some(name) => c.name == *name,
            None => c.kind.is_verifier(),
        })
    }
}

/// Every key that some kind reads, with its type. Reading into this first lets the configuration reader point
/// at the very key that is misspelt or of the wrong type; the chosen kind then refuses the keys that are not
/// its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: KindName,
    name: Option<String>,
    weight: Option<f64>,
    extract: Option<Vec<Extract>>,
    truncated: Option<Truncated>,
    ignore_case: Option<bool>,
    tolerance: Option<f64>,
    partial: Option<f64>,
    pattern: Option<String>,
    once: Option<bool>,
    min_tokens: Option<usize>,
    max_tokens: Option<usize>,
    fade: Option<usize>,
    buffer: Option<usize>,
    factor: Option<f64>,
    probability: Option<f64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    Exact,
    Numeric,
    Math,
    Countdown,
    Environment,
    Format,
    Length,
    Random,
}

impl<'de> Deserialize<'de> for ComponentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_keys(&Keys::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn from_keys(keys: &Keys) -> Result<ComponentSettings, String> {
    let Ok(Value::Object(mut given)) = serde_json::to_value(keys) else {
        return Err("the component is not a table".into());
    };
    given.retain(|key, value| !value.is_null() && !matches!(key.as_str(), "kind" | "name" | "weight"));
    let kind = match keys.kind {
        KindName::Exact => Kind::Exact(own(given, "exact")?),
        KindName::Numeric => Kind::Numeric(own(given, "numeric")?),
        KindName::Math => Kind::Math(own(given, "math")?),
        KindName::Countdown => Kind::Countdown(own(given, "countdown")?),
        KindName::Environment => Kind::Environment(own(given, "environment")?),
        KindName::Format => Kind::Format(own(given, "format")?),
        KindName::Length => Kind::Length(own(given, "length")?),
        KindName::Random => Kind::Random(own(given, "random")?),
    };
    Ok(ComponentSettings {
        name: keys.name.clone().unwrap_or_else(|| kind.name().to_owned()),
        weight: keys.weight.unwrap_or(1.0),
        kind,
    })
}

/// Reads a kind's own keys; any other is one that it does not read.
fn own<T: DeserializeOwned>(given: Map<String, Value>, kind: &str) -> Result<T, String> {
    serde_json::from_value(Value::Object(given)).map_err(|e| format!("{e} (keys of the `{kind}` reward)"))
}

impl Serialize for ComponentSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = match &self.kind {
            Kind::Exact(r) => serde_json::to_value(r),
            Kind::Numeric(r) => serde_json::to_value(r),
            Kind::Math(r) => serde_json::to_value(r),
            Kind::Countdown(r) => serde_json::to_value(r),
            Kind::Environment(r) => serde_json::to_value(r),
            Kind::Format(r) => serde_json::to_value(r),
            Kind::Length(r) => serde_json::to_value(r),
            Kind::Random(r) => serde_json::to_value(r),
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind.name())?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("weight", &self.weight)?;
        if let Value::Object(keys) = own.map_err(S::Error::custom)? {
            for (key, value) in keys {
                map.serialize_entry(&key, &value)?;
            }
        }
        map.end()
    }
}
