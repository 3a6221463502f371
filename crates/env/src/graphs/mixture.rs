use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::debate::separator;
use super::plan::{Conclusion, Plan, Planned};
use super::{agents_of, check_roles, graph_kind, prompt_of};
use crate::keys::keys;
use crate::roles::{RoleKeys, RoleSettings, problem};
use crate::settings::Kind;
use crate::{AgentSpec, World};

/// A mixture: several agents answer the task at the same time, and an aggregator makes one answer of theirs.
///
/// The answer of the episode is the aggregator's text; the reward judges it. In the texts of the roles `{task}` stands for the
/// task, and in that of the aggregator `{others}` for the answers of the others and the name of an agent for its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixtureSettings {
    /// The agents, by name: `prompt` is the text of their prompt, by default `{task}`.
    #[serde(default)]
    pub agents: BTreeMap<String, RoleSettings>,
    /// Name of the agent that makes one answer of those of the others.
    #[serde(default = "aggregator")]
    pub aggregator: String,
    /// Text between the answers of others.
    #[serde(default = "separator")]
    pub separator: String,
    /// Also judge each turn by itself: its reward becomes the turn's step reward, and the agent's.
    #[serde(default)]
    pub reward_turns: bool,
}

keys!(MixtureSettings {
    agents: BTreeMap<String, RoleSettings>,
    aggregator: String,
    separator: String,
    reward_turns: bool,
});

fn aggregator() -> String {
    "aggregator".to_owned()
}

impl MixtureSettings {
    fn aggregator(&self) -> Option<&RoleSettings> {
        self.agents.get(&self.aggregator)
    }
}

impl Kind for MixtureSettings {
    graph_kind!();

    fn validate(&self) -> Result<(), SettingError> {
        let Some(aggregator) = self.aggregator() else {
            return Err(problem(format!("there is no table `agents.{}`, the aggregator", self.aggregator)));
        };
        if aggregator.prompt.is_none() || aggregator.count.is_some() {
            let name = &self.aggregator;
            return Err(problem(format!(
                "`{name}` is a single agent, whose `prompt` has the others' answers"
            )));
        }
        if self.agents.len() < 2 {
            return Err(problem("a mixture needs an agent beyond its aggregator".to_owned()));
        }
        let keys = RoleKeys { count: true, ..RoleKeys::default() };
        check_roles(&self.agents, &self.agents(), &["task", "others"], keys)
    }

    fn max_turns(&self) -> usize {
        self.agents().len()
    }

    fn agents(&self) -> Vec<AgentSpec> {
        let agents = agents_of(&self.agents).into_iter().map(|(agent, _)| agent);
        let (last, mut first): (Vec<_>, Vec<_>) = agents.partition(|agent| agent.name == self.aggregator);
        first.extend(last);
        first
    }

    fn alphabet(&self) -> String {
        self.agents.values().map(RoleSettings::texts).collect::<String>() + &self.separator
    }

    fn world(&self) -> Option<Arc<dyn World>> {
        let proposers =
            agents_of(&self.agents).into_iter().filter(|(agent, _)| agent.name != self.aggregator);
        let round: Vec<_> =
            proposers.enumerate().map(|(agent, (_, role))| (agent, prompt_of(Some(role)))).collect();
        let last = (round.len(), prompt_of(self.aggregator()));
        Some(Arc::new(Planned(Arc::new(Plan {
            name: "mixture",
            rounds: vec![round, vec![last]],
            agents: self.agents(),
            separator: self.separator.clone(),
            shown: None,
            conclusion: Conclusion::Last,
            reward_turns: self.reward_turns,
        }))))
    }
}
