use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{SettingError, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::talk::Conversation;
use super::{agents_in, check_order, check_roles, graph_kind};
use crate::keys::keys;
use crate::roles::{RoleKeys, RoleSettings, problem};
use crate::settings::Kind;
use crate::{AgentSpec, World};

/// A conversation: agents speak in turns until one of them writes `stop_phrase`, or up to a number of turns.
///
/// Each agent has one growing context: its prompt, its own turns and what the others said since. The answer of the episode is
/// the last text; the reward judges it. In the text of a prompt `{task}` stands for the task and `{last}` for what was said
/// before the agent's first turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConversationSettings {
    /// The agents, by name: `prompt` is the text of their prompt, by default `{task}`, and `revise` that of their later turns,
    /// by default `{last}`.
    #[serde(default)]
    pub agents: BTreeMap<String, RoleSettings>,
    /// The agents in the order in which they speak, from the beginning again when all have spoken.
    #[serde(default)]
    pub order: Vec<String>,
    /// Maximum number of turns of all agents, from 1 to 1000.
    #[serde(default = "max_turns")]
    pub max_turns: u32,
    /// A turn that contains this text ends the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_phrase: Option<String>,
    /// Text between what several others said.
    #[serde(default = "super::debate::separator")]
    pub separator: String,
}

keys!(ConversationSettings {
    agents: BTreeMap<String, RoleSettings>,
    order: Vec<String>,
    max_turns: u32,
    stop_phrase: Option<String>,
    separator: String,
});

fn max_turns() -> u32 {
    10
}

impl Kind for ConversationSettings {
    graph_kind!();

    fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, 1000.0).check("max_turns", self.max_turns.into())?;
        check_order(&self.order, &self.agents)?;
        if self.agents.len() < 2 {
            return Err(problem("a conversation needs two agents".to_owned()));
        }
        if self.order.len() > self.agents.len() {
            return Err(problem("`order` lists an agent more than once".to_owned()));
        }
        let keys = RoleKeys { placeholders: &["task", "last"], revise: true, count: false };
        self.agents.iter().try_for_each(|(name, role)| role.check(name, keys))?;
        check_roles(&BTreeMap::new(), &self.agents(), &["task", "last"], RoleKeys::default())
    }

    fn max_turns(&self) -> usize {
        self.max_turns as usize
    }

    fn agents(&self) -> Vec<AgentSpec> {
        agents_in(&self.order, &self.agents).into_iter().map(|(agent, _)| agent).collect()
    }

    fn alphabet(&self) -> String {
        self.agents.values().map(RoleSettings::texts).collect::<String>() + &self.separator
    }

    fn world(&self) -> Option<Arc<dyn World>> {
        Some(Arc::new(Conversation::new(self.clone(), self.agents())))
    }
}
