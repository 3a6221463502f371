//! `[cluster]`: the machines of a run.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest duration of a setting in seconds: a year, which clocks can add without overflow.
const MAX_SECONDS: f64 = 31_536_000.0;
/// Most machines; larger numbers are typing errors.
const MAX_NODES: usize = 4096;

/// `[cluster]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// What starts the node daemons (`rloom node`), one on each machine.
    pub launcher: Launcher,
    /// Number of machines.
    pub nodes: usize,
    /// Address that the run listens on for its daemons, `HOST:PORT`; port 0 lets the system choose one. Without this key a run
    /// listens on loopback alone. `0.0.0.0` stands for all interfaces.
    pub bind: String,
    /// Time until all daemons have connected after which the run ends, in seconds.
    pub join_seconds: f64,
    /// Time until another daemon takes the place of a lost one, in seconds. After that, servers of the lost machine start on
    /// other machines, and ranks end the run.
    pub replace_seconds: f64,
    /// Passes new weights from machine to machine as compressed differences to the last version, where those are smaller.
    /// Saves bytes of slow networks, and costs processor time on fast ones.
    pub delta: bool,
    /// GPUs of each machine that are reserved for the run. Default: all that a daemon finds; with Ray none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<usize>,
    /// Processor cores of each machine that are reserved for the run. Default: all that a daemon finds; with Ray one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_node: Option<usize>,
    /// Number of further machines for the processes of rewards and environments. Engines do not use them.
    pub cpu_nodes: usize,
    /// Processor cores of each of these further machines. Default: all that a daemon finds; with Ray one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_cpu_node: Option<usize>,
    /// Ray: address of the cluster. `"auto"` is the one that the command runs in or that this machine belongs to, `"local"`
    /// starts one on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Ray: which machines may be the same. Default: `"strict_spread"`, one daemon on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementStrategy>,
    /// Ray: Python interpreter of an environment with `ray` and the package `rloom`. Default: `python3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<PathBuf>,
}

/// What starts the daemons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Launcher {
    /// The run itself, on this machine alone.
    #[default]
    Local,
    /// Ray: a placement group with a daemon in each of its bundles.
    Ray,
    /// Others: SLURM, Kubernetes, a person. The run waits until the daemons connect. Run and daemons need the same
    /// `RLOOM_TOKEN` in their environments.
    Wait,
}

/// Strategy of a placement group of Ray.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlacementStrategy {
    /// On as few machines as possible.
    Pack,
    /// On as many machines as possible.
    Spread,
    /// On one machine.
    StrictPack,
    /// On as many machines as there are nodes.
    StrictSpread,
}

impl PlacementStrategy {
    /// Its name in configurations and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
            Self::StrictPack => "strict_pack",
            Self::StrictSpread => "strict_spread",
        }
    }
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            launcher: Launcher::Local,
            nodes: 1,
            bind: LOOPBACK.to_owned(),
            join_seconds: 600.0,
            replace_seconds: 120.0,
            delta: false,
            gpus_per_node: None,
            cpus_per_node: None,
            cpu_nodes: 0,
            cpus_per_cpu_node: None,
            address: None,
            placement: None,
            python: None,
        }
    }
}

/// Default of `bind`.
pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// A key with an impossible value: key, value, and what is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What it may be.
    pub expected: String,
}

impl ClusterSettings {
    /// Keys that only Ray reads.
    pub const RAY_KEYS: [&str; 3] = ["address", "placement", "python"];

    /// Number of machines, those for rewards and environments included.
    pub fn machines(&self) -> usize {
        self.nodes + self.cpu_nodes
    }

    /// Checks the range of each value.
    pub fn validate(&self) -> Result<(), InvalidKey> {
        let refuse = |key, value: String, expected: &str| {
            Err(InvalidKey { key, value, expected: expected.to_owned() })
        };
        if !(1..=MAX_NODES).contains(&self.nodes) {
            return refuse("nodes", self.nodes.to_string(), "from 1 to 4096");
        }
        if self.launcher == Launcher::Local && self.nodes > 1 {
            let expected =
                "1 with `launcher = \"local\"`; \"ray\" and \"wait\" start runs on several machines";
            return refuse("nodes", self.nodes.to_string(), expected);
        }
        if self.cpu_nodes > MAX_NODES {
            return refuse("cpu_nodes", self.cpu_nodes.to_string(), "from 0 to 4096");
        }
        if self.launcher == Launcher::Local && self.cpu_nodes > 0 {
            let expected =
                "0 with `launcher = \"local\"`; \"ray\" and \"wait\" start runs on several machines";
            return refuse("cpu_nodes", self.cpu_nodes.to_string(), expected);
        }
        if split_port(&self.bind).is_none() {
            return refuse("bind", self.bind.clone(), "HOST:PORT, such as 0.0.0.0:7011");
        }
        if self.launcher == Launcher::Wait && split_port(&self.bind).is_some_and(|(_, port)| port == 0) {
            let expected = "with `launcher = \"wait\"` an address with a port, which the daemons connect to";
            return refuse("bind", self.bind.clone(), expected);
        }
        for (key, value) in [("join_seconds", self.join_seconds), ("replace_seconds", self.replace_seconds)] {
            if !(value > 0.0 && value <= MAX_SECONDS) {
                return refuse(key, value.to_string(), "above 0 and at most 31536000 (a year)");
            }
        }
        for (key, cores) in
            [("cpus_per_node", self.cpus_per_node), ("cpus_per_cpu_node", self.cpus_per_cpu_node)]
        {
            if cores == Some(0) {
                return refuse(key, "0".to_owned(), "at least 1");
            }
        }
        Ok(())
    }
}

/// `HOST:PORT`, also with an IPv6 address in brackets.
fn split_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_bare_v6 = host.contains(':') && !host.starts_with('[');
    (!host.is_empty() && !is_bare_v6).then_some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let wait = ClusterSettings {
            launcher: Launcher::Wait,
            nodes: 2,
            bind: "0.0.0.0:7011".to_owned(),
            ..ClusterSettings::default()
        };
        assert_eq!(ClusterSettings::default().validate(), Ok(()));
        assert_eq!(wait.validate(), Ok(()));
        let key_of = |settings: ClusterSettings| settings.validate().unwrap_err().key;
        let with_bind = |bind: &str| ClusterSettings { bind: bind.to_owned(), ..wait.clone() };
        for bind in ["10.0.0.1", "10.0.0.1:", ":7", "::1:7", "a:70000", LOOPBACK] {
            assert_eq!(key_of(with_bind(bind)), "bind", "{bind}");
        }
        assert_eq!(with_bind("[::1]:7").validate(), Ok(()));
        assert_eq!(key_of(ClusterSettings { nodes: 2, ..ClusterSettings::default() }), "nodes");
        assert_eq!(key_of(ClusterSettings { nodes: 0, ..wait.clone() }), "nodes");
        assert_eq!(key_of(ClusterSettings { join_seconds: f64::NAN, ..wait.clone() }), "join_seconds");
        assert_eq!(key_of(ClusterSettings { cpus_per_node: Some(0), ..wait.clone() }), "cpus_per_node");
        assert_eq!(key_of(ClusterSettings { cpu_nodes: 1, ..ClusterSettings::default() }), "cpu_nodes");
        assert_eq!(key_of(ClusterSettings { cpu_nodes: 4097, ..wait.clone() }), "cpu_nodes");
        let with_cpu_nodes = ClusterSettings { cpu_nodes: 3, ..wait };
        assert_eq!((with_cpu_nodes.validate(), with_cpu_nodes.machines()), (Ok(()), 5));
        let none = ClusterSettings { cpus_per_cpu_node: Some(0), ..with_cpu_nodes };
        assert_eq!(key_of(none), "cpus_per_cpu_node");
    }
}
