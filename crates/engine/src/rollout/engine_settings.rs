use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::settings::{MAX_SECONDS, RolloutSettings, Speculation};

/// Settings of a rollout engine, `[stage.rollout]` in a recipe: a flat table with `engine` and the keys of that engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "engine", rename_all = "snake_case")]
pub enum RolloutEngineSettings {
    /// The engine of this process.
    Embedded(RolloutSettings),
    /// vLLM servers.
    Vllm(ServerSettings),
    /// `SGLang` servers.
    Sglang(ServerSettings),
}

impl Default for RolloutEngineSettings {
    fn default() -> Self {
        Self::Embedded(RolloutSettings::default())
    }
}

impl RolloutEngineSettings {
    /// Keys of every engine.
    pub const COMMON_KEYS: [&str; 3] = ["engine", "timeout_seconds", "restarts"];

    /// Name in configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Vllm(_) => "vllm",
            Self::Sglang(_) => "sglang",
        }
    }

    /// Timeout of one completion and of one response of the environment, in seconds.
    pub fn timeout_seconds(&self) -> f64 {
        match self {
            Self::Embedded(settings) => settings.timeout_seconds,
            Self::Vllm(settings) | Self::Sglang(settings) => settings.timeout_seconds,
        }
    }

    /// Maximum number of completions that a lane or a replica computes at a time.
    pub fn max_running(&self) -> usize {
        match self {
            Self::Embedded(settings) => settings.max_batch,
            Self::Vllm(settings) | Self::Sglang(settings) => settings.max_requests,
        }
    }

    /// Settings of the engine of this process; `None` for others.
    pub fn embedded(&self) -> Option<&RolloutSettings> {
        match self {
            Self::Embedded(settings) => Some(settings),
            Self::Vllm(_) | Self::Sglang(_) => None,
        }
    }

    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), SettingError> {
        match self {
            Self::Embedded(settings) => settings.validate(),
            Self::Vllm(settings) | Self::Sglang(settings) => settings.validate(),
        }
    }
}

/// Settings of inference servers that generate rollouts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Addresses of servers that run already, such as `http://127.0.0.1:8000`. Empty: the run starts `replicas` servers and
    /// ends them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Servers that the run starts.
    pub replicas: usize,
    /// Devices that one replica divides the model among.
    pub tensor_parallel: usize,
    /// Share of a device's memory that a replica may use; above 0 and at most 1.
    pub memory: f64,
    /// Further command-line arguments of a replica.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Python interpreter of an environment with the server.
    pub python: String,
    /// Maximum number of requests that a replica has at a time.
    pub max_requests: usize,
    /// Timeout of one completion, from its submission to the engine to its result, and of one response of the environment,
    /// in seconds.
    pub timeout_seconds: f64,
    /// Number of times each replica may be started again after it died or kept weights that it should have replaced.
    pub restarts: u32,
    /// Time without any replica that answers after which the run ends, in seconds.
    pub replace_seconds: f64,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            replicas: 1,
            tensor_parallel: 1,
            memory: 0.9,
            args: Vec::new(),
            python: "python3".to_owned(),
            max_requests: 256,
            timeout_seconds: 3600.0,
            restarts: 3,
            replace_seconds: 600.0,
        }
    }
}

/// Most replicas, devices or requests; larger numbers are typing errors.
const MANY: f64 = 65_536.0;

impl ServerSettings {
    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, MANY).check("replicas", self.replicas as f64)?;
        ValueRange::between(1.0, MANY).check("tensor_parallel", self.tensor_parallel as f64)?;
        ValueRange::above(0.0, 1.0).check("memory", self.memory)?;
        ValueRange::between(1.0, MANY).check("max_requests", self.max_requests as f64)?;
        ValueRange::above(0.0, MAX_SECONDS).check("timeout_seconds", self.timeout_seconds)?;
        ValueRange::above(0.0, MAX_SECONDS).check("replace_seconds", self.replace_seconds)?;
        let refuse = |key, value: String, expected| Err(SettingProblem::Invalid { value, expected }.at(key));
        if let Some(url) = self.urls.iter().find(|url| !url.starts_with("http://")) {
            return refuse("urls", url.clone(), "addresses of the form http://HOST:PORT");
        }
        if self.python.trim().is_empty() {
            return refuse("python", "empty".to_owned(), "the path or name of a Python interpreter");
        }
        Ok(())
    }
}

/// The keys of all engines, with their types. Deserialising this first reports misspelt keys and wrong types at the right
/// place in the file; the selected engine then rejects the keys of the others.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    engine: Option<EngineName>,
    threads: Option<usize>,
    lanes: Option<usize>,
    kv_memory_mib: Option<usize>,
    max_batch: Option<usize>,
    prefill_chunk: Option<usize>,
    speculation: Option<Speculation>,
    timeout_seconds: Option<f64>,
    restarts: Option<u32>,
    urls: Option<Vec<String>>,
    replicas: Option<usize>,
    tensor_parallel: Option<usize>,
    memory: Option<f64>,
    args: Option<Vec<String>>,
    python: Option<String>,
    max_requests: Option<usize>,
    replace_seconds: Option<f64>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EngineName {
    #[default]
    Embedded,
    Vllm,
    Sglang,
}

impl<'de> Deserialize<'de> for RolloutEngineSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Keys::deserialize(deserializer)?;
        let Value::Object(mut own) = serde_json::to_value(&keys).map_err(D::Error::custom)? else {
            return Err(D::Error::custom("the rollout engine is not a table"));
        };
        own.retain(|key, value| !value.is_null() && key != "engine");
        Ok(match keys.engine.unwrap_or_default() {
            EngineName::Embedded => Self::Embedded(from_own_keys(own, "embedded")?),
            EngineName::Vllm => Self::Vllm(from_own_keys(own, "vllm")?),
            EngineName::Sglang => Self::Sglang(from_own_keys(own, "sglang")?),
        })
    }
}

/// Deserialises the keys of one engine; keys of others are errors.
fn from_own_keys<T: DeserializeOwned, E: Error>(own: Map<String, Value>, engine: &str) -> Result<T, E> {
    serde_json::from_value(Value::Object(own))
        .map_err(|e| E::custom(format_args!("{e} (keys of the engine `{engine}`)")))
}

/// The flat table as a schema: one alternative per engine.
impl JsonSchema for RolloutEngineSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RolloutEngineSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Table::json_schema(generator)
    }
}

#[derive(JsonSchema)]
#[serde(tag = "engine", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Table {
    /// The engine of this process. The default.
    Embedded(RolloutSettings),
    /// vLLM servers, each in a process of its own.
    Vllm(ServerSettings),
    /// `SGLang` servers, each in a process of its own.
    Sglang(ServerSettings),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<RolloutEngineSettings, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_selects_its_engine() {
        assert_eq!(parse("{}").unwrap(), RolloutEngineSettings::default());
        let vllm = parse(r#"{ "engine": "vllm", "replicas": 2, "memory": 0.5 }"#).unwrap();
        let expected = ServerSettings { replicas: 2, memory: 0.5, ..ServerSettings::default() };
        assert_eq!((vllm.clone(), vllm.name()), (RolloutEngineSettings::Vllm(expected), "vllm"));
        assert_eq!(parse(&serde_json::to_string(&vllm).unwrap()).unwrap(), vllm);
        let sglang = parse(r#"{ "engine": "sglang", "timeout_seconds": 5 }"#).unwrap();
        assert_eq!((sglang.timeout_seconds(), sglang.embedded()), (5.0, None));
    }

    #[test]
    fn keys_of_another_engine_are_refused() {
        let error = parse(r#"{ "replicas": 2 }"#).unwrap_err();
        assert!(error.contains("unknown field `replicas`") && error.contains("engine `embedded`"), "{error}");
        let error = parse(r#"{ "engine": "vllm", "lanes": 2 }"#).unwrap_err();
        assert!(error.contains("unknown field `lanes`") && error.contains("engine `vllm`"), "{error}");
    }

    #[test]
    fn ranges_are_checked() {
        for (keys, key) in [
            (r#""replicas": 0"#, "replicas"),
            (r#""memory": 1.5"#, "memory"),
            (r#""urls": ["127.0.0.1:8000"]"#, "urls"),
            (r#""python": """#, "python"),
            (r#""timeout_seconds": 0"#, "timeout_seconds"),
            (r#""replace_seconds": -1"#, "replace_seconds"),
        ] {
            let settings = parse(&format!(r#"{{ "engine": "vllm", {keys} }}"#)).unwrap();
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{key}`:")), "{error}");
        }
    }
}
