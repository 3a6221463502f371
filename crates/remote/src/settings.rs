use std::path::PathBuf;

use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of inference servers that serve as rollout engine: started by the run, or running already (`urls`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Number of servers to start. Not used with `urls`.
    pub replicas: usize,
    /// Addresses of servers that are running already, such as `http://10.0.0.5:8000`. Nothing is started or restarted then,
    /// and the servers read weights from the run's folder.
    pub urls: Vec<String>,
    /// Fraction of the device's memory for weights, keys and values of one server.
    pub memory: f64,
    /// Number of devices that share one server's model.
    pub tensor_parallel: usize,
    /// Maximum number of requests that a server computes at a time; others wait.
    pub max_requests: usize,
    /// Number of times that each server may be restarted, or its weights loaded again after a failed update.
    pub restarts: u32,
    /// Time without any server that serves requests after which the run ends, in seconds.
    pub replace_seconds: f64,
    /// Mean difference of log-probabilities, in nats, by which a server may deviate from the trainer on the probe of an
    /// update. Covers the noise of its number format, not wrong weights.
    pub probe_tolerance: f64,
    /// Further command-line arguments for each server that is started.
    pub args: Vec<String>,
    /// Python interpreter of the environment that has the server; empty for the one that `rloom engines install` made.
    pub python: PathBuf,
    /// Timeout of one completion, from its submission to the engine to its result, in seconds.
    pub timeout_seconds: f64,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            replicas: 1,
            urls: Vec::new(),
            memory: 0.9,
            tensor_parallel: 1,
            max_requests: 128,
            restarts: 3,
            replace_seconds: 600.0,
            probe_tolerance: 0.05,
            args: Vec::new(),
            python: PathBuf::new(),
            timeout_seconds: 3600.0,
        }
    }
}

impl ServerSettings {
    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), SettingError> {
        for (key, value) in [
            ("replicas", self.replicas),
            ("tensor_parallel", self.tensor_parallel),
            ("max_requests", self.max_requests),
        ] {
            if !(1..=65536).contains(&value) {
                return refuse(key, value.to_string(), "from 1 to 65536");
            }
        }
        if !(self.memory > 0.0 && self.memory <= 1.0) {
            return refuse("memory", self.memory.to_string(), "above 0 and at most 1");
        }
        if !(self.probe_tolerance > 0.0 && self.probe_tolerance.is_finite()) {
            return refuse("probe_tolerance", self.probe_tolerance.to_string(), "above 0");
        }
        // One year: larger values would overflow when added to a point in time.
        for (key, value) in
            [("replace_seconds", self.replace_seconds), ("timeout_seconds", self.timeout_seconds)]
        {
            if !(value > 0.0 && value <= 31_536_000.0) {
                return refuse(key, value.to_string(), "above 0 and at most 31536000");
            }
        }
        for url in &self.urls {
            if crate::http::HttpClient::new(url, 0).is_err() {
                return refuse("urls", url.clone(), "addresses of the form http://host:port");
            }
        }
        Ok(())
    }

    /// Number of servers.
    pub fn servers(&self) -> usize {
        if self.urls.is_empty() { self.replicas } else { self.urls.len() }
    }
}

fn refuse(key: &'static str, value: String, expected: &'static str) -> Result<(), SettingError> {
    Err(SettingProblem::Invalid { value, expected }.at(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_values_are_refused_by_name() {
        let good = ServerSettings::default();
        good.validate().unwrap();
        let cases = [
            (ServerSettings { replicas: 0, ..good.clone() }, "replicas"),
            (ServerSettings { tensor_parallel: 0, ..good.clone() }, "tensor_parallel"),
            (ServerSettings { max_requests: 0, ..good.clone() }, "max_requests"),
            (ServerSettings { memory: 1.5, ..good.clone() }, "memory"),
            (ServerSettings { probe_tolerance: f64::NAN, ..good.clone() }, "probe_tolerance"),
            (ServerSettings { replace_seconds: 0.0, ..good.clone() }, "replace_seconds"),
            (ServerSettings { timeout_seconds: f64::INFINITY, ..good.clone() }, "timeout_seconds"),
            (ServerSettings { urls: vec!["localhost:8000".to_owned()], ..good.clone() }, "urls"),
        ];
        for (settings, key) in cases {
            let message = settings.validate().unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{key}`: must be ")), "{message}");
        }
        assert!(serde_json::from_str::<ServerSettings>(r#"{"replica": 2}"#).is_err());
        let urls = vec!["http://a:1".to_owned(), "http://b:1".to_owned()];
        assert_eq!(ServerSettings { urls, ..good }.servers(), 2);
    }
}
