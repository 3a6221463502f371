use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{SettingError, ValueRange};
use rloom_function::Host;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::play::SelfPlay;
use super::{Observe, PLAYERS, VersusGame};
use crate::keys::keys;
use crate::roles::{RoleKeys, RoleSettings, problem};
use crate::settings::Kind;
use crate::{AgentSpec, Environment, EnvironmentUnusable, World};

/// A game of two agents, `first` and `second`, that play each other.
///
/// The tasks are those of the game's generator, which say where the game begins. The first agent to move has the task's prompt;
/// the other one has the same prompt with its own position, or the `prompt` of its role. The reward of an agent is 1 for a
/// win, −1 for a loss and `draw_reward` for a draw, in Kuhn poker the number of chips, plus `illegal_reward` for each
/// turn that is not a legal move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SelfPlaySettings {
    /// The game.
    pub game: VersusGame,
    /// The agents, `first` and `second`: their policies and prompts, in which `{position}` stands for the position.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, RoleSettings>,
    /// Maximum number of turns of an agent, from 1 to 1000.
    #[serde(default = "max_turns")]
    pub max_turns: u32,
    /// Reward of a turn that is not a legal move, from −1000 to 0.
    #[serde(default = "illegal_reward")]
    pub illegal_reward: f64,
    /// End the game at such a turn; otherwise the agent is told and has another turn.
    #[serde(default)]
    pub illegal_ends: bool,
    /// Reward of both agents for a draw, from −1 to 1.
    #[serde(default)]
    pub draw_reward: f64,
    /// What an agent sees after a move of the other one.
    #[serde(default)]
    pub observation: Observe,
}

keys!(SelfPlaySettings {
    game: VersusGame,
    agents: BTreeMap<String, RoleSettings>,
    max_turns: u32,
    illegal_reward: f64,
    illegal_ends: bool,
    draw_reward: f64,
    observation: Observe,
});

fn max_turns() -> u32 {
    25
}

fn illegal_reward() -> f64 {
    -0.1
}

impl Kind for SelfPlaySettings {
    fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, 1000.0).check("max_turns", self.max_turns.into())?;
        ValueRange::between(-1000.0, 0.0).check("illegal_reward", self.illegal_reward)?;
        ValueRange::between(-1.0, 1.0).check("draw_reward", self.draw_reward)?;
        for (name, role) in &self.agents {
            if !PLAYERS.contains(&name.as_str()) {
                return Err(problem(format!("the agents of a game are `first` and `second`, not `{name}`")));
            }
            role.check(name, RoleKeys { placeholders: &["position"], ..RoleKeys::default() })?;
        }
        Ok(())
    }

    fn max_turns(&self) -> usize {
        2 * self.max_turns as usize
    }

    fn game(&self) -> Option<&'static str> {
        Some(self.game.name())
    }

    fn agents(&self) -> Vec<AgentSpec> {
        PLAYERS.map(|name| RoleSettings::spec(self.agents.get(name), name)).into()
    }

    fn alphabet(&self) -> String {
        let prompts = self.agents.values().map(RoleSettings::texts);
        self.game.alphabet().to_owned() + &prompts.collect::<String>()
    }

    fn environment(
        &self,
        _: Duration,
        _: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Err(EnvironmentUnusable::SeveralAgents)
    }

    fn world(&self) -> Option<Arc<dyn World>> {
        Some(Arc::new(SelfPlay::new(self.clone(), self.agents())))
    }
}
