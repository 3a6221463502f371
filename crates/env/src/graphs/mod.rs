//! Role graphs: agents that work on one task and read each other's texts.
//!
//! A [`Plan`] says who is asked in which round, with which text; debate, chain and mixture are plans. In a conversation the
//! agents alternate until one of them ends it.

mod chain;
mod conversation;
mod debate;
mod mixture;
mod plan;
mod talk;

pub use chain::ChainSettings;
pub use conversation::ConversationSettings;
pub use debate::{DebateConclusion, DebateSettings};
pub use mixture::MixtureSettings;

use std::collections::BTreeMap;

use rloom_core::SettingError;

use crate::AgentSpec;
use crate::roles::{RoleKeys, RoleSettings, problem};

/// The agents of the roles, in the order of their names, each with its role.
fn agents_of<'r>(roles: &'r BTreeMap<String, RoleSettings>) -> Vec<(AgentSpec, &'r RoleSettings)> {
    let of_role = |(name, role): (&String, &'r RoleSettings)| {
        let names: Vec<String> = RoleSettings::names(role, name);
        names.into_iter().map(move |name| (RoleSettings::spec(Some(role), &name), role))
    };
    roles.iter().flat_map(of_role).collect()
}

/// The agents that `order` lists, each once, in the order of their first places.
fn agents_in<'r>(
    order: &[String],
    roles: &'r BTreeMap<String, RoleSettings>,
) -> Vec<(AgentSpec, Option<&'r RoleSettings>)> {
    let mut agents: Vec<(AgentSpec, Option<&RoleSettings>)> = Vec::new();
    for name in order {
        if agents.iter().all(|(agent, _)| agent.name != *name) {
            let role = roles.get(name);
            agents.push((RoleSettings::spec(role, name), role));
        }
    }
    agents
}

/// Checks the roles and that their texts have only placeholders for the agents and for `more`.
fn check_roles(
    roles: &BTreeMap<String, RoleSettings>,
    agents: &[AgentSpec],
    more: &[&str],
    keys: RoleKeys<'_>,
) -> Result<(), SettingError> {
    let placeholders: Vec<&str> =
        more.iter().copied().chain(agents.iter().map(|agent| agent.name.as_str())).collect();
    let reserved = agents.iter().find(|agent| more.contains(&agent.name.as_str()));
    if let Some(agent) = reserved {
        return Err(problem(format!("`{}` is a placeholder, and no name of an agent", agent.name)));
    }
    let keys = RoleKeys { placeholders: &placeholders, ..keys };
    roles.iter().try_for_each(|(name, role)| role.check(name, keys))
}

/// Checks that `order` names roles, all of them.
fn check_order(order: &[String], roles: &BTreeMap<String, RoleSettings>) -> Result<(), SettingError> {
    if let Some(name) = order.iter().find(|name| !roles.contains_key(*name)) {
        return Err(problem(format!("`order` lists `{name}`, but there is no table `agents.{name}`")));
    }
    match roles.keys().find(|name| !order.contains(name)) {
        Some(name) => Err(problem(format!("`order` does not list `{name}`"))),
        None => Ok(()),
    }
}

/// Text of an agent's prompt, by default the task.
fn prompt_of(role: Option<&RoleSettings>) -> String {
    role.and_then(|role| role.prompt.clone()).unwrap_or_else(|| "{task}".to_owned())
}

/// Implements the parts of [`Kind`](crate::settings::Kind) that role graphs share.
macro_rules! graph_kind {
    () => {
        fn has_steps(&self) -> bool {
            false
        }

        fn reads_answer(&self) -> bool {
            false
        }

        fn is_game(&self) -> bool {
            false
        }

        fn environment(
            &self,
            _: std::time::Duration,
            _: Option<std::sync::Arc<dyn rloom_function::Host>>,
        ) -> Result<std::sync::Arc<dyn $crate::Environment>, $crate::EnvironmentUnusable> {
            Err($crate::EnvironmentUnusable::SeveralAgents)
        }
    };
}
pub(crate) use graph_kind;
