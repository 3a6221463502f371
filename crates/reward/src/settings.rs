use std::path::PathBuf;
use std::time::Duration;

use rloom_core::ValueRange;
use rloom_function::{CommandFunction, FunctionError, HttpFunction, PythonFunction};
use rloom_sandbox::Choice;
use rloom_sandbox::code::Language;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::function::FunctionSettings;
use crate::{
    Code, ComponentError, Countdown, DomainSet, EnvironmentReward, Exact, Extract, Format, Length, Math,
    Numeric, Random, Reward, RewardError, Score, Truncated,
};

/// Reaction to the failure of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Fail the group, which ends the run unless `schedule.max_failures` allows it to be replaced.
    #[default]
    Fatal,
    /// Leave the completion out of training; failures are counted.
    Drop,
}

/// The reward: a weighted sum of named components.
///
/// ```
/// # use rloom_reward::RewardSettings;
/// let settings: RewardSettings = serde_json::from_str(
///     r#"{ "components": [{ "kind": "math" }, { "kind": "length", "weight": 0.5, "max_tokens": 512 }] }"#,
/// )
/// .unwrap();
/// assert_eq!(settings.components[1].name, "length");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardSettings {
    /// Components of the sum; at least one.
    pub components: Vec<ComponentSettings>,
    /// Name of the outcome component: the verifier that evaluation and dynamic sampling use. Default, and in domains that it
    /// does not judge: the first verifier of the task's domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Reaction to the failure of a component: an error, a panic, a value that is not finite, or a timeout.
    #[serde(default)]
    pub on_error: OnError,
    /// With `on_error = "drop"`: largest share of the completions of a group, or of the tasks of an evaluation, that may be
    /// left out; from 0 to below 1. Beyond it the group or the evaluation fails. Default: 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dropped: Option<f64>,
    /// Timeout for judging one completion, in seconds; above 0 and at most 31536000 (a year).
    #[serde(default = "default_timeout")]
    pub timeout_seconds: f64,
}

fn default_timeout() -> f64 {
    60.0
}

/// Default of `max_dropped`.
pub(crate) const MAX_DROPPED: f64 = 0.5;

/// One component of the sum. In a configuration it is a flat table with `kind`, `name`, `weight` and the keys of the
/// kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentSettings {
    /// Name, as in the metric `reward/<name>`. Default: the kind.
    pub name: String,
    /// Weight in the sum. Default: 1. With 0 the component is reported without effect on the reward.
    pub weight: f64,
    /// Domains of the tasks that it judges. Default: all.
    pub domains: DomainSet,
    /// Kind, with its settings.
    pub kind: Kind,
}

/// Kind of a component, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Equality of text.
    Exact(Exact),
    /// Equality of numbers.
    Numeric(Numeric),
    /// Equality of mathematical expressions.
    Math(Math),
    /// An expression that reaches a target with the given numbers.
    Countdown(Countdown),
    /// The sum of the environment's step rewards.
    Environment(EnvironmentReward),
    /// A pattern of the completion.
    Format(Format),
    /// The length of the completion.
    Length(Length),
    /// A random value.
    Random(Random),
    /// Test cases of programs.
    Code(Code),
    /// A Python function.
    Python(PythonFunction),
    /// A program.
    Command(CommandFunction),
    /// A server.
    Http(HttpFunction),
}

impl Kind {
    /// Name in configuration.
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
            Self::Code(_) => "code",
            Self::Python(_) => "python",
            Self::Command(_) => "command",
            Self::Http(_) => "http",
        }
    }

    /// True if it is a verifier.
    pub fn is_verifier(&self) -> bool {
        match self.form() {
            Form::Reward(reward) => reward.is_verifier(),
            Form::Code(_) => true,
            Form::Function(function) => function.solved_at().is_some(),
        }
    }

    /// True if a function outside of this program computes it.
    pub fn is_function(&self) -> bool {
        matches!(self.form(), Form::Function(_))
    }

    /// Number of processes that compute it; `None` if this program, the caller's process or a server does.
    pub fn processes(&self) -> Option<usize> {
        match self {
            Self::Python(settings) => settings.processes(),
            Self::Command(settings) => Some(settings.workers as usize),
            _ => None,
        }
    }

    /// True if it reads the reference answer of every task.
    fn reads_answer(&self) -> bool {
        matches!(self.form(), Form::Reward(reward) if reward.reads_answer())
    }

    fn validate(&self) -> Result<(), ComponentError> {
        match self.form() {
            Form::Reward(reward) => reward.validate(),
            Form::Code(code) => code.validate(),
            Form::Function(function) => {
                if let Some(least) = function.solved_at() {
                    ValueRange::between(f64::MIN, f64::MAX).check("solved_at", least)?;
                }
                Ok(function.validate()?)
            }
        }
    }

    fn form(&self) -> Form<'_> {
        match self {
            Self::Exact(r) => Form::Reward(r),
            Self::Numeric(r) => Form::Reward(r),
            Self::Math(r) => Form::Reward(r),
            Self::Countdown(r) => Form::Reward(r),
            Self::Environment(r) => Form::Reward(r),
            Self::Format(r) => Form::Reward(r),
            Self::Length(r) => Form::Reward(r),
            Self::Random(r) => Form::Reward(r),
            Self::Code(settings) => Form::Code(settings),
            Self::Python(settings) => Form::Function(FunctionSettings::Python(settings)),
            Self::Command(settings) => Form::Function(FunctionSettings::Command(settings)),
            Self::Http(settings) => Form::Function(FunctionSettings::Http(settings)),
        }
    }

    /// Creates the reward. `timeout` limits one judgement of a function.
    pub(crate) fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, FunctionError> {
        Ok(match self.clone() {
            Self::Exact(r) => Box::new(r),
            Self::Numeric(r) => Box::new(r),
            Self::Math(r) => Box::new(r),
            Self::Countdown(r) => Box::new(r),
            Self::Environment(r) => Box::new(r),
            Self::Format(r) => Box::new(r),
            Self::Length(r) => Box::new(r),
            Self::Random(r) => Box::new(r),
            Self::Code(settings) => Box::new(settings.reward(timeout)),
            Self::Python(settings) => Box::new(FunctionSettings::Python(&settings).reward(timeout)?),
            Self::Command(settings) => Box::new(FunctionSettings::Command(&settings).reward(timeout)?),
            Self::Http(settings) => Box::new(FunctionSettings::Http(&settings).reward(timeout)?),
        })
    }
}

/// What a kind is made of.
enum Form<'k> {
    /// The reward itself.
    Reward(&'k dyn Reward),
    /// Settings of a reward that runs programs.
    Code(&'k Code),
    /// Settings of a function.
    Function(FunctionSettings<'k>),
}

impl From<Kind> for ComponentSettings {
    fn from(kind: Kind) -> Self {
        Self { name: kind.name().to_owned(), weight: 1.0, domains: DomainSet::All, kind }
    }
}

impl RewardSettings {
    /// One component with weight 1.
    pub fn single(kind: Kind) -> Self {
        Self {
            components: vec![kind.into()],
            outcome: None,
            on_error: OnError::Fatal,
            max_dropped: None,
            timeout_seconds: default_timeout(),
        }
    }

    /// Checks the settings.
    pub fn validate(&self) -> Result<(), RewardError> {
        if self.components.is_empty() {
            return Err(RewardError::NoComponents);
        }
        for (i, component) in self.components.iter().enumerate() {
            let name = &component.name;
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
                return Err(RewardError::InvalidName { name: name.clone() });
            }
            if self.components[..i].iter().any(|c| c.name == *name) {
                return Err(RewardError::RepeatedName { name: name.clone() });
            }
            if component.domains == DomainSet::none() {
                return Err(RewardError::NoDomains { name: name.clone() });
            }
            if !component.weight.is_finite() {
                return Err(RewardError::Weight { name: name.clone(), weight: component.weight });
            }
            component
                .kind
                .validate()
                .map_err(|source| RewardError::Component { name: name.clone(), source })?;
        }
        // A year, which clocks can add without overflow.
        ValueRange::above(0.0, 31_536_000.0).check("timeout_seconds", self.timeout_seconds)?;
        if let Some(max_dropped) = self.max_dropped {
            if self.on_error == OnError::Fatal {
                return Err(RewardError::NothingDropped);
            }
            ValueRange::from_below(0.0, 1.0).check("max_dropped", max_dropped)?;
        }
        let Some(outcome) = &self.outcome else { return Ok(()) };
        match self.components.iter().find(|c| c.name == *outcome) {
            None => Err(RewardError::UnknownOutcome { name: outcome.clone() }),
            Some(c) if !c.kind.is_verifier() => {
                Err(RewardError::OutcomeNotVerifier { name: outcome.clone() })
            }
            Some(_) => Ok(()),
        }
    }

    /// Timeout of one judgement.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }

    /// Makes the paths of functions absolute, so that they do not depend on the working directory.
    pub fn make_absolute(&mut self) {
        for component in &mut self.components {
            match &mut component.kind {
                Kind::Python(settings) => settings.make_absolute(),
                Kind::Command(settings) => settings.make_absolute(),
                _ => {}
            }
        }
    }

    /// Python functions of the components: `file.py:name` or `caller:name`.
    pub fn python_functions(&self) -> impl Iterator<Item = &str> {
        self.components.iter().filter_map(|component| match &component.kind {
            Kind::Python(settings) => Some(settings.function.as_str()),
            _ => None,
        })
    }

    /// True if a component has to be checked on the machine before a run: it calls a function or runs programs.
    pub fn needs_machine(&self) -> bool {
        let needs = |kind: &Kind| kind.is_function() || matches!(kind, Kind::Code(_));
        self.components.iter().any(|component| needs(&component.kind))
    }

    /// Name of the first component that reads the reference answers of a domain.
    pub fn answer_reader(&self, domain: &str) -> Option<&str> {
        let reads = |c: &&ComponentSettings| c.kind.reads_answer() && c.domains.contains(domain);
        self.components.iter().find(reads).map(|c| c.name.as_str())
    }

    /// Weight of the environment's step rewards; `None` if no component uses them.
    pub fn environment_weight(&self) -> Option<f64> {
        self.components.iter().find(|c| matches!(c.kind, Kind::Environment(_))).map(|c| c.weight)
    }
}

/// The keys of all kinds, with their types. Deserialising this first reports misspelt keys and wrong types at the right
/// place in the file; the selected kind then rejects the keys of the others.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: KindName,
    name: Option<String>,
    weight: Option<f64>,
    domains: Option<DomainSet>,
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
    probability: Option<f64>,
    language: Option<Language>,
    tests: Option<String>,
    score: Option<Score>,
    fenced: Option<bool>,
    sandbox: Option<Choice>,
    readable: Option<Vec<PathBuf>>,
    case_seconds: Option<f64>,
    function: Option<String>,
    command: Option<Vec<String>>,
    url: Option<String>,
    workers: Option<u32>,
    python: Option<String>,
    group: Option<bool>,
    recycle_calls: Option<u64>,
    memory_mib: Option<u64>,
    solved_at: Option<f64>,
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
    Code,
    Python,
    Command,
    Http,
}

impl<'de> Deserialize<'de> for ComponentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_keys(&Keys::deserialize(deserializer)?)
    }
}

fn from_keys<E: Error>(keys: &Keys) -> Result<ComponentSettings, E> {
    let Value::Object(mut given) = serde_json::to_value(keys).map_err(E::custom)? else {
        return Err(E::custom("the component is not a table"));
    };
    given.retain(|key, value| {
        !value.is_null() && !matches!(key.as_str(), "kind" | "name" | "weight" | "domains")
    });
    let kind = match keys.kind {
        KindName::Exact => Kind::Exact(from_own_keys(given, "exact")?),
        KindName::Numeric => Kind::Numeric(from_own_keys(given, "numeric")?),
        KindName::Math => Kind::Math(from_own_keys(given, "math")?),
        KindName::Countdown => Kind::Countdown(from_own_keys(given, "countdown")?),
        KindName::Environment => Kind::Environment(from_own_keys(given, "environment")?),
        KindName::Format => Kind::Format(from_own_keys(given, "format")?),
        KindName::Length => Kind::Length(from_own_keys(given, "length")?),
        KindName::Random => Kind::Random(from_own_keys(given, "random")?),
        KindName::Code => Kind::Code(from_own_keys(given, "code")?),
        KindName::Python => Kind::Python(from_own_keys(given, "python")?),
        KindName::Command => Kind::Command(from_own_keys(given, "command")?),
        KindName::Http => Kind::Http(from_own_keys(given, "http")?),
    };
    Ok(ComponentSettings {
        name: keys.name.clone().unwrap_or_else(|| kind.name().to_owned()),
        weight: keys.weight.unwrap_or(1.0),
        domains: keys.domains.clone().unwrap_or_default(),
        kind,
    })
}

/// Deserialises the keys of one kind; keys of other kinds are errors.
fn from_own_keys<T: DeserializeOwned, E: Error>(given: Map<String, Value>, kind: &str) -> Result<T, E> {
    serde_json::from_value(Value::Object(given))
        .map_err(|e| E::custom(format_args!("{e} (keys of the `{kind}` reward)")))
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
            Kind::Code(r) => serde_json::to_value(r),
            Kind::Python(r) => serde_json::to_value(r),
            Kind::Command(r) => serde_json::to_value(r),
            Kind::Http(r) => serde_json::to_value(r),
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind.name())?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("weight", &self.weight)?;
        if self.domains != DomainSet::All {
            map.serialize_entry("domains", &self.domains)?;
        }
        if let Value::Object(keys) = own.map_err(S::Error::custom)? {
            for (key, value) in keys {
                map.serialize_entry(&key, &value)?;
            }
        }
        map.end()
    }
}

/// The flat table as a schema: one alternative per kind.
impl JsonSchema for ComponentSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ComponentSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Table::json_schema(generator)
    }
}

/// One component of the reward.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Table {
    /// Name, as in the metric `reward/<name>`. Default: the kind.
    name: Option<String>,
    /// Weight in the sum. Default: 1. With 0 the component is reported without effect on the reward.
    weight: Option<f64>,
    /// Domains of the tasks that it judges. Default: all.
    domains: Option<Vec<String>>,
    #[serde(flatten)]
    kind: KindTable,
}

#[derive(JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum KindTable {
    Exact(Exact),
    Numeric(Numeric),
    Math(Math),
    Countdown(Countdown),
    Environment(EnvironmentReward),
    Format(Format),
    Length(Length),
    Random(Random),
    Code(Code),
    Python(PythonFunction),
    Command(CommandFunction),
    Http(HttpFunction),
}
