use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::debate::separator;
use super::plan::{Conclusion, Plan, Planned};
use super::{agents_in, check_order, check_roles, graph_kind, prompt_of};
use crate::keys::keys;
use crate::roles::{RoleKeys, RoleSettings};
use crate::settings::Kind;
use crate::{AgentSpec, World};

/// A chain: agents take turns in a given order, such as generator, verifier and refiner. Each reads what the ones before it wrote.
///
/// The answer of the episode is the last text; the reward judges it. In the texts of the roles `{task}` stands for the task,
/// `{own}` for the agent's last text, and the name of an agent for that agent's last text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainSettings {
    /// The agents, by name: `prompt` is the text of their prompt, by default `{task}`.
    #[serde(default)]
    pub agents: BTreeMap<String, RoleSettings>,
    /// The agents in the order of their turns. An agent may have several.
    #[serde(default)]
    pub order: Vec<String>,
    /// Also judge each turn by itself: its reward becomes the turn's step reward, and that of the last turn the agent's.
    #[serde(default)]
    pub reward_turns: bool,
}

keys!(ChainSettings {
    agents: BTreeMap<String, RoleSettings>,
    order: Vec<String>,
    reward_turns: bool,
});

impl Kind for ChainSettings {
    graph_kind!();

    fn validate(&self) -> Result<(), SettingError> {
        if self.order.is_empty() {
            return Err(SettingProblem::Empty.at("order"));
        }
        check_order(&self.order, &self.agents)?;
        check_roles(&self.agents, &self.agents(), &["task", "own"], RoleKeys::default())
    }

    fn max_turns(&self) -> usize {
        self.order.len()
    }

    fn agents(&self) -> Vec<AgentSpec> {
        agents_in(&self.order, &self.agents).into_iter().map(|(agent, _)| agent).collect()
    }

    fn alphabet(&self) -> String {
        self.agents.values().map(RoleSettings::texts).collect()
    }

    fn world(&self) -> Option<Arc<dyn World>> {
        let agents = self.agents();
        let round = |name: &String| {
            let agent = agents.iter().position(|agent| agent.name == *name).unwrap_or_default();
            vec![(agent, prompt_of(self.agents.get(name)))]
        };
        Some(Arc::new(Planned(Arc::new(Plan {
            name: "chain",
            rounds: self.order.iter().map(round).collect(),
            agents: self.agents(),
            separator: separator(),
            shown: None,
            conclusion: Conclusion::Last,
            reward_turns: self.reward_turns,
        }))))
    }
}
