use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plan::{Conclusion, Plan, Planned};
use super::{agents_of, check_roles, graph_kind, prompt_of};
use crate::keys::keys;
use crate::roles::{RoleKeys, RoleSettings, problem};
use crate::settings::Kind;
use crate::{AgentSpec, World};

/// A debate: all agents answer the task at the same time, read the answers of the others and answer again, round after round.
///
/// The answer of the episode is that of the majority in the last round, or all of them; the reward judges it. In the texts of the roles
/// `{task}` stands for the task, `{own}` for the agent's last answer, `{others}` for those of the others, and the name of
/// an agent for its last answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DebateSettings {
    /// The agents, by name: `prompt` is the text of the first round, by default `{task}`, and `revise` that of the others.
    #[serde(default)]
    pub agents: BTreeMap<String, RoleSettings>,
    /// Number of rounds, from 1 to 100.
    #[serde(default = "rounds")]
    pub rounds: u32,
    /// The answer of the episode.
    #[serde(default)]
    pub conclusion: DebateConclusion,
    /// Text after whose last occurrence an answer begins, as votes are counted. Default: everything is the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_after: Option<String>,
    /// Maximum number of answers of others that an agent sees, drawn and ordered at random.
    #[serde(default = "shown")]
    pub shown: u32,
    /// Text between the answers of others.
    #[serde(default = "separator")]
    pub separator: String,
    /// Also judge each turn by itself: its reward becomes the turn's step reward, and that of the last turn the agent's.
    #[serde(default)]
    pub reward_turns: bool,
}

/// The answer of a debate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DebateConclusion {
    /// The first answer of the last round that most agents gave.
    #[default]
    Majority,
    /// All answers of the last round, in the order of the agents, with `separator` between them.
    All,
}

keys!(DebateSettings {
    agents: BTreeMap<String, RoleSettings>,
    rounds: u32,
    conclusion: DebateConclusion,
    answer_after: Option<String>,
    shown: u32,
    separator: String,
    reward_turns: bool,
});

fn rounds() -> u32 {
    2
}

fn shown() -> u32 {
    5
}

pub(super) fn separator() -> String {
    "\n".to_owned()
}

impl Kind for DebateSettings {
    graph_kind!();

    fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, 100.0).check("rounds", self.rounds.into())?;
        ValueRange::at_least(1.0).check("shown", self.shown.into())?;
        let agents = self.agents();
        if agents.len() < 2 {
            return Err(problem("a debate needs two agents: two tables, or one with `count`".to_owned()));
        }
        if self.conclusion == DebateConclusion::All && self.answer_after.is_some() {
            return Err(SettingProblem::Roles {
                problem: "answers that are joined are not counted".to_owned(),
            }
            .at("answer_after"));
        }
        let keys = RoleKeys { revise: self.rounds > 1, count: true, ..RoleKeys::default() };
        check_roles(&self.agents, &agents, &["task", "own", "others"], keys)?;
        let silent = self.agents.iter().find(|(_, role)| self.rounds > 1 && role.revise.is_none());
        match silent {
            Some((name, _)) => {
                Err(problem(format!("`{name}.revise`, the prompt of later rounds, is missing")))
            }
            None => Ok(()),
        }
    }

    fn max_turns(&self) -> usize {
        self.agents().len() * self.rounds as usize
    }

    fn combines_turns(&self) -> bool {
        self.rounds == 1
    }

    fn agents(&self) -> Vec<AgentSpec> {
        agents_of(&self.agents).into_iter().map(|(agent, _)| agent).collect()
    }

    fn alphabet(&self) -> String {
        self.agents.values().map(RoleSettings::texts).collect::<String>() + &self.separator
    }

    fn world(&self) -> Option<Arc<dyn World>> {
        let agents = agents_of(&self.agents);
        let round = |round: u32| {
            let text = |role: &RoleSettings| match &role.revise {
                Some(revise) if round > 0 => revise.clone(),
                _ => prompt_of(Some(role)),
            };
            agents.iter().enumerate().map(|(agent, (_, role))| (agent, text(role))).collect()
        };
        Some(Arc::new(Planned(Arc::new(Plan {
            name: "debate",
            rounds: (0..self.rounds).map(round).collect(),
            agents: self.agents(),
            separator: self.separator.clone(),
            shown: Some(self.shown as usize),
            conclusion: match self.conclusion {
                DebateConclusion::Majority => {
                    Conclusion::Majority { answer_after: self.answer_after.clone() }
                }
                DebateConclusion::All => Conclusion::All,
            },
            reward_turns: self.reward_turns,
        }))))
    }
}
