//! Servers that run already, for commands that only generate.

use rloom_core::PolicyVersion;
use rloom_engine::{PublishedPolicy, RolloutEngine, RolloutEngineSettings};
use rloom_remote::{EnvironmentKind, ModelLimits, ReplicaPool};

use super::configured::ConfiguredEngines;
use super::servers::connect;
use crate::{Policy, RunError};

/// An engine over the servers that `settings` has the addresses of, and a policy's folder as the weights that they load. They
/// see the folder under the same path.
pub fn running_servers(
    policy: &Policy,
    settings: &RolloutEngineSettings,
) -> Result<(impl RolloutEngine + use<>, PublishedPolicy), RunError> {
    let (kind, servers) = match settings {
        RolloutEngineSettings::Vllm(servers) => (EnvironmentKind::Vllm, servers),
        RolloutEngineSettings::Sglang(servers) => (EnvironmentKind::Sglang, servers),
        RolloutEngineSettings::Embedded(_) => return Err(RunError::NoServers),
    };
    let folder = policy.folder().filter(|_| !servers.urls.is_empty()).ok_or(RunError::NoServers)?;
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let limits = ModelLimits { context: policy.context, vocabulary: policy.vocabulary };
    let pool = ReplicaPool::new(limits, servers, Some((*policy.tokenizer).clone()))?;
    for url in &servers.urls {
        pool.join(connect(kind, url)?);
    }
    Ok((pool, ConfiguredEngines::open_folder(&folder, PolicyVersion(0))?))
}
