use std::collections::BTreeMap;

use rloom_core::PolicyId;
use rloom_env::AgentSpec;

/// The policies that agents sample from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentPolicies {
    /// The policy of agents that name none of the others.
    pub main: PolicyId,
    /// Other policies, by name.
    pub others: BTreeMap<String, PolicyId>,
}

impl AgentPolicies {
    /// One policy for all agents.
    pub fn all(main: PolicyId) -> Self {
        Self { main, others: BTreeMap::new() }
    }

    /// The policy of an agent.
    pub fn of(&self, agent: Option<&AgentSpec>) -> PolicyId {
        agent.and_then(|agent| self.others.get(&agent.policy)).copied().unwrap_or(self.main)
    }
}
