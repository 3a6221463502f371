//! Servers that agents outside of this program call.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rloom_agents::{AgentError, AgentRunner, AgentServer};
use rloom_data::DataSettings;
use rloom_engine::SamplingSettings;
use rloom_env::AgentEnvironment;
use rloom_reward::RewardSettings;
use rloom_serve::ServedModel;
use rloom_text::Tokenizer;
use rloom_text::calls::CallFormat;
use serde_json::{Map, Value};

use crate::stage_setup::RunInputs;

/// Servers of the agents of a run, started when the first of its stages needs them and shared by stages and evaluation. They
/// stop when this is dropped.
#[derive(Debug, Default)]
pub struct AgentServers {
    /// Folder of logs and of the key of leases; without it neither is kept.
    folder: Option<PathBuf>,
    started: Mutex<Vec<Started>>,
}

#[derive(Debug)]
struct Started {
    settings: AgentEnvironment,
    variables: Map<String, Value>,
    server: Arc<AgentServer>,
}

impl AgentServers {
    /// No servers yet. Logs of agents are kept in a folder.
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder: Some(folder), started: Mutex::default() }
    }

    /// The runner of the agents of a stage or an evaluation; `name` tells their logs apart.
    pub(crate) fn runner(
        &self,
        inputs: &RunInputs,
        settings: &AgentEnvironment,
        name: &str,
        data: &DataSettings,
        tokenizer: &Tokenizer,
        reward: &RewardSettings,
    ) -> Result<AgentRunner, AgentError> {
        let server = self.server(inputs, settings, data, tokenizer)?;
        let needs_reward = reward.environment_weight().is_some_and(|weight| weight != 0.0);
        Ok(AgentRunner::new(server, settings.clone(), name, self.folder.as_deref(), needs_reward))
    }

    fn server(
        &self,
        inputs: &RunInputs,
        settings: &AgentEnvironment,
        data: &DataSettings,
        tokenizer: &Tokenizer,
    ) -> Result<Arc<AgentServer>, AgentError> {
        let variables = &data.prompt_format.template_variables;
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |own: &&Started| own.settings == *settings && own.variables == *variables;
        if let Some(own) = started.iter().find(is_same) {
            return Ok(Arc::clone(&own.server));
        }
        if settings.lease && started.iter().any(|own| own.settings.lease) {
            return Err(AgentError::SeveralLeases);
        }
        let model = ServedModel {
            name: "policy".to_owned(),
            tokenizer: tokenizer.clone(),
            format: settings.format.or_else(|| CallFormat::detect(tokenizer)),
            // Each session has its own.
            sampling: SamplingSettings::default(),
            stop_tokens: Arc::clone(&inputs.stop_tokens),
            context: inputs.context,
            seed: inputs.seed,
        };
        let server = Arc::new(AgentServer::start(model, settings, self.folder.as_deref())?);
        let (settings, variables) = (settings.clone(), variables.clone());
        started.push(Started { settings, variables, server: Arc::clone(&server) });
        Ok(server)
    }
}
