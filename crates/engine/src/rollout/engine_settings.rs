use std::path::PathBuf;

use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::settings::{MAX_SECONDS, RolloutQuantization, RolloutSettings, Speculation};

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

    /// True if the engine gives its GPU away while the trainer trains.
    pub fn sleeps(&self) -> bool {
        match self {
            Self::Embedded(_) => false,
            Self::Vllm(settings) | Self::Sglang(settings) => settings.sleep,
        }
    }

    /// Number format of the weights, if it is not that of the computation.
    pub fn quantize(&self) -> Option<RolloutQuantization> {
        self.embedded().and_then(|settings| settings.quantize)
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

/// Way in which servers get new weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightTransfer {
    /// Written to the run's folder and read by the servers. Of an adapter (`trainer.lora`) that vLLM serves, the adapter alone.
    #[default]
    Folder,
    /// As `folder`, with an adapter always added to its base.
    Merged,
    /// Broadcast from the first rank's GPU to those of the servers.
    Nccl,
    /// Handles of GPU memory, where a rank and a server share a GPU.
    Ipc,
}

/// Devices of each server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TensorParallel {
    /// The same number for all servers.
    Equal(usize),
    /// A number for each server; further ones have the last.
    Each(Vec<usize>),
}

impl TensorParallel {
    /// Devices of a server.
    pub fn of(&self, server: usize) -> usize {
        let numbers = self.numbers();
        numbers.get(server).or(numbers.last()).copied().unwrap_or(1)
    }

    /// Fewest devices of a server.
    pub fn fewest(&self) -> usize {
        self.numbers().iter().copied().min().unwrap_or(1)
    }

    /// The different numbers, by server.
    pub fn numbers(&self) -> &[usize] {
        match self {
            Self::Equal(number) => std::slice::from_ref(number),
            Self::Each(numbers) => numbers,
        }
    }
}

/// Settings of inference servers that generate rollouts: started by the run, or running already (`urls`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Number of servers to start. Not used with `urls`. Default: 1, or the length of a list in `tensor_parallel`.
    pub replicas: usize,
    /// Addresses of servers that are running already, such as `http://10.0.0.5:8000`. Nothing is started or restarted then.
    /// They see the run's folder under the same path, or get weights over NCCL (`weights`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Fraction of the device's memory for weights, keys and values of one server. Default: 0.9 of a GPU, or of the share in
    /// `gpus_per_replica`; on processors 0.4 of the machine's memory, divided among the servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Number of devices that share one server's model: for all servers, or a list with one number for each, such as
    /// `[2, 1, 1]`. Servers beyond a list have its last number.
    pub tensor_parallel: TensorParallel,
    /// Share of a GPU for each server, below 1: with 0.5, two servers use one GPU. Default: whole GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_per_replica: Option<f64>,
    /// Maximum number of requests that a server computes at a time; others wait.
    pub max_requests: usize,
    /// Number of times that each server may be restarted, or its weights loaded again after a failed update.
    pub restarts: u32,
    /// Time without any server that serves requests after which the run ends, in seconds.
    pub replace_seconds: f64,
    /// Way in which the servers get new weights.
    pub weights: WeightTransfer,
    /// Servers and trainer take turns on the same GPU: a server gives its memory away while the trainer trains, and the
    /// trainer moves its weights to the memory of the host while the server generates.
    pub sleep: bool,
    /// Mean difference of log-probabilities, in nats, by which a server may deviate from the trainer on the probe of an
    /// update. Covers the noise of its number format, not wrong weights.
    pub probe_tolerance: f64,
    /// Further command-line arguments for each server that is started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Python interpreter of the environment that has the server; empty for the one that `rloom engines install` made.
    pub python: PathBuf,
    /// Timeout of one completion, from its submission to the engine to its result, and of one response of the environment,
    /// in seconds.
    pub timeout_seconds: f64,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            replicas: 1,
            urls: Vec::new(),
            memory: None,
            tensor_parallel: TensorParallel::Equal(1),
            gpus_per_replica: None,
            max_requests: 128,
            restarts: 3,
            replace_seconds: 600.0,
            weights: WeightTransfer::Folder,
            sleep: false,
            probe_tolerance: 0.05,
            args: Vec::new(),
            python: PathBuf::new(),
            timeout_seconds: 3600.0,
        }
    }
}

impl ServerSettings {
    /// Number of servers.
    pub fn servers(&self) -> usize {
        if self.urls.is_empty() { self.replicas } else { self.urls.len() }
    }

    /// Fraction of the device's memory for one server, which has GPUs or shares the machine's memory with the trainer.
    pub fn memory_fraction(&self, has_gpus: bool) -> f64 {
        let of_gpu = 0.9 * self.gpus_per_replica.unwrap_or(1.0);
        self.memory.unwrap_or(if has_gpus { of_gpu } else { 0.4 / self.replicas.max(1) as f64 })
    }

    /// Number of servers that use one GPU.
    pub fn servers_per_gpu(&self) -> usize {
        // Three shares of 0.333 are a GPU, and so are those of 0.1 that add up to it with a rounding error.
        self.gpus_per_replica.map_or(1, |share| ((1.0 / share + 1e-9) as usize).max(1))
    }

    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), SettingError> {
        let refuse = |key, value: String, expected| Err(SettingProblem::Invalid { value, expected }.at(key));
        for (key, value) in [("replicas", self.replicas), ("max_requests", self.max_requests)] {
            if !(1..=65536).contains(&value) {
                return refuse(key, value.to_string(), "from 1 to 65536");
            }
        }
        let sizes = self.tensor_parallel.numbers();
        if sizes.is_empty() {
            return refuse("tensor_parallel", "[]".to_owned(), "a number, or a list of numbers");
        }
        if let Some(size) = sizes.iter().find(|size| !(1..=65536).contains(*size)) {
            return refuse("tensor_parallel", size.to_string(), "from 1 to 65536");
        }
        if let Some(memory) = self.memory {
            ValueRange::above(0.0, 1.0).check("memory", memory)?;
        }
        if let Some(share) = self.gpus_per_replica {
            if !(share > 0.0 && share < 1.0) {
                return refuse("gpus_per_replica", share.to_string(), "above 0 and below 1");
            }
            if sizes.iter().any(|size| *size > 1) {
                let expected = "none with `tensor_parallel` above 1: a server uses whole GPUs then";
                return refuse("gpus_per_replica", share.to_string(), expected);
            }
            if self.sleep {
                let expected = "none with `sleep`: a server has the GPU alone while it generates";
                return refuse("gpus_per_replica", share.to_string(), expected);
            }
            if let Some(memory) = self.memory.filter(|memory| *memory > share) {
                return refuse("memory", memory.to_string(), "at most `gpus_per_replica`");
            }
        }
        if !(self.probe_tolerance > 0.0 && self.probe_tolerance.is_finite()) {
            return refuse("probe_tolerance", self.probe_tolerance.to_string(), "above 0");
        }
        ValueRange::above(0.0, MAX_SECONDS).check("replace_seconds", self.replace_seconds)?;
        ValueRange::above(0.0, MAX_SECONDS).check("timeout_seconds", self.timeout_seconds)?;
        match self.urls.iter().find(|url| !is_address(url)) {
            Some(url) => refuse("urls", url.clone(), "addresses of the form http://host:port"),
            None => Ok(()),
        }
    }
}

/// True for `http://host:port`.
fn is_address(url: &str) -> bool {
    let host_and_port =
        url.strip_prefix("http://").and_then(|rest| rest.trim_end_matches('/').rsplit_once(':'));
    host_and_port
        .is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok())
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
    quantize: Option<RolloutQuantization>,
    timeout_seconds: Option<f64>,
    restarts: Option<u32>,
    urls: Option<Vec<String>>,
    replicas: Option<usize>,
    tensor_parallel: Option<TensorParallel>,
    gpus_per_replica: Option<f64>,
    memory: Option<f64>,
    args: Option<Vec<String>>,
    python: Option<PathBuf>,
    max_requests: Option<usize>,
    replace_seconds: Option<f64>,
    weights: Option<WeightTransfer>,
    sleep: Option<bool>,
    probe_tolerance: Option<f64>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EngineName {
    #[default]
    Embedded,
    Vllm,
    Sglang,
    #[serde(rename = "tensorrt-llm")]
    TensorrtLlm,
}

/// Reason to refuse `trtllm-serve`, by the protocol of its versions up to 1.4.
const TENSORRT_LLM: &str = "TensorRT-LLM's server takes new weights only as CUDA handles of processes on its own machine, \
                            and has no versions of weights and no pauses: use \"vllm\" or \"sglang\"";

impl<'de> Deserialize<'de> for RolloutEngineSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Keys::deserialize(deserializer)?;
        let Value::Object(mut own) = serde_json::to_value(&keys).map_err(D::Error::custom)? else {
            return Err(D::Error::custom("the rollout engine is not a table"));
        };
        own.retain(|key, value| !value.is_null() && key != "engine");
        if let (None, Some(TensorParallel::Each(numbers))) = (keys.replicas, &keys.tensor_parallel) {
            own.insert("replicas".to_owned(), numbers.len().into());
        }
        Ok(match keys.engine.unwrap_or_default() {
            EngineName::Embedded => Self::Embedded(from_own_keys(own, "embedded")?),
            EngineName::Vllm => Self::Vllm(from_own_keys(own, "vllm")?),
            EngineName::Sglang => Self::Sglang(from_own_keys(own, "sglang")?),
            EngineName::TensorrtLlm => return Err(D::Error::custom(TENSORRT_LLM)),
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
        let expected = ServerSettings { replicas: 2, memory: Some(0.5), ..ServerSettings::default() };
        assert_eq!((vllm.clone(), vllm.name()), (RolloutEngineSettings::Vllm(expected), "vllm"));
        assert_eq!(parse(&serde_json::to_string(&vllm).unwrap()).unwrap(), vllm);
        let sglang = parse(r#"{ "engine": "sglang", "timeout_seconds": 5 }"#).unwrap();
        assert_eq!((sglang.timeout_seconds(), sglang.embedded()), (5.0, None));
        assert!(parse(r#"{ "engine": "vllm", "weights": "auto" }"#).unwrap_err().contains("`auto`"));
    }

    #[test]
    fn keys_of_another_engine_are_refused() {
        let error = parse(r#"{ "replicas": 2 }"#).unwrap_err();
        assert!(error.contains("unknown field `replicas`") && error.contains("engine `embedded`"), "{error}");
        let error = parse(r#"{ "engine": "vllm", "lanes": 2 }"#).unwrap_err();
        assert!(error.contains("unknown field `lanes`") && error.contains("engine `vllm`"), "{error}");
    }

    #[test]
    fn a_list_of_sizes_is_one_for_each_server() {
        let servers = |json: &str| match parse(json).unwrap() {
            RolloutEngineSettings::Vllm(servers) => servers,
            other => panic!("{other:?}"),
        };
        let different = servers(r#"{ "engine": "vllm", "tensor_parallel": [2, 1, 1] }"#);
        assert_eq!((different.replicas, different.validate()), (3, Ok(())));
        assert_eq!([0, 1, 2, 3].map(|server| different.tensor_parallel.of(server)), [2, 1, 1, 1]);
        let equal = servers(r#"{ "engine": "vllm", "tensor_parallel": 2 }"#);
        assert_eq!((equal.replicas, equal.tensor_parallel.of(5)), (1, 2));
        let fewer = servers(r#"{ "engine": "vllm", "tensor_parallel": [2, 1], "replicas": 1 }"#);
        assert_eq!(fewer.replicas, 1);
    }

    #[test]
    fn shares_of_gpus_limit_the_memory() {
        let half = ServerSettings { gpus_per_replica: Some(0.5), ..ServerSettings::default() };
        assert_eq!((half.validate(), half.servers_per_gpu()), (Ok(()), 2));
        assert!((half.memory_fraction(true) - 0.45).abs() < 1e-12);
        let with = |change: fn(&mut ServerSettings)| {
            let mut settings = half.clone();
            change(&mut settings);
            settings.validate().map_err(|error| error.to_string())
        };
        assert_eq!(with(|settings| settings.memory = Some(0.5)), Ok(()));
        assert!(with(|settings| settings.memory = Some(0.6)).unwrap_err().contains("gpus_per_replica"));
        assert!(with(|settings| settings.tensor_parallel = TensorParallel::Equal(2)).is_err());
        assert!(with(|settings| settings.sleep = true).is_err());
        assert!(with(|settings| settings.gpus_per_replica = Some(1.0)).is_err());
        for (share, servers) in [(0.1, 10), (0.34, 2), (1.0 / 3.0, 3), (0.9, 1)] {
            let settings = ServerSettings { gpus_per_replica: Some(share), ..ServerSettings::default() };
            assert_eq!(settings.servers_per_gpu(), servers, "{share}");
        }
    }

    #[test]
    fn tensorrt_llm_is_refused_by_name() {
        let error = parse(r#"{ "engine": "tensorrt-llm", "urls": ["http://a:1"] }"#).unwrap_err();
        assert!(error.contains("takes new weights only as CUDA handles"), "{error}");
    }

    #[test]
    fn ranges_are_checked() {
        for (keys, key) in [
            (r#""replicas": 0"#, "replicas"),
            (r#""memory": 1.5"#, "memory"),
            (r#""urls": ["127.0.0.1:8000"]"#, "urls"),
            (r#""urls": ["http://host"]"#, "urls"),
            (r#""probe_tolerance": 0"#, "probe_tolerance"),
            (r#""timeout_seconds": 0"#, "timeout_seconds"),
            (r#""replace_seconds": -1"#, "replace_seconds"),
        ] {
            let settings = parse(&format!(r#"{{ "engine": "vllm", {keys} }}"#)).unwrap();
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{key}`:")), "{error}");
        }
        let urls = vec!["http://a:1".to_owned(), "http://10.0.0.5:8000/".to_owned()];
        let running = ServerSettings { urls, ..ServerSettings::default() };
        running.validate().unwrap();
        assert_eq!((running.servers(), ServerSettings::default().servers()), (2, 1));
    }
}
