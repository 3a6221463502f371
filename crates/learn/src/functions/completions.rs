//! Advantages of a batch from a function.

use rloom_core::{Episode, Group, PolicyVersion, Role};
use rloom_function::{Completions, FunctionError};
use serde_json::{Map, Value, json};

use super::MethodFunctions;

/// Advantages from a function, `[group][episode]`: one for all tokens of the episode or one per token; none for episodes
/// that are not for training.
pub type GivenAdvantages = Vec<Vec<Vec<f64>>>;

impl MethodFunctions {
    /// True if a function computes the advantages.
    pub fn computes_advantages(&self) -> bool {
        self.advantage.is_some()
    }

    /// The advantages of a batch; `None` if no function computes them.
    pub fn advantages(
        &self,
        version: PolicyVersion,
        groups: &[Group],
    ) -> Result<Option<GivenAdvantages>, FunctionError> {
        let Some(function) = &self.advantage else { return Ok(None) };
        let mut found = function.advantages(&completions(version, groups))?.into_iter();
        let of_episode = |episode: &Episode| {
            if is_trained(episode) { found.next().unwrap_or_default() } else { Vec::new() }
        };
        let mut of_episode = of_episode;
        Ok(Some(groups.iter().map(|group| group.episodes.iter().map(&mut of_episode).collect()).collect()))
    }

    /// True if a function decides which groups are trained on.
    pub fn filters_groups(&self) -> bool {
        self.filter.is_some()
    }

    /// True if a group that `version` has sampled is to be trained on.
    pub fn keeps(&self, version: PolicyVersion, group: &Group) -> Result<bool, FunctionError> {
        let Some(function) = &self.filter else { return Ok(true) };
        function.keeps(&completions(version, std::slice::from_ref(group)))
    }
}

fn is_trained(episode: &Episode) -> bool {
    episode.role == Role::Train
}

/// The trained episodes of some groups as a function receives them.
fn completions(version: PolicyVersion, groups: &[Group]) -> Completions<'_> {
    let mut found = Completions { step: version.0, ..Completions::default() };
    let mut components: Map<String, Value> = Map::new();
    for (index, group) in groups.iter().enumerate() {
        for episode in group.episodes.iter().filter(|episode| is_trained(episode)) {
            found.rewards.push(episode.rewards.total());
            found.groups.push(index);
            found.lengths.push(episode.policy_tokens());
            found.truncated.push(episode.segments.last().is_some_and(|s| s.stop.is_truncated()));
            found.rows.push(&group.task.extra);
            for component in &episode.rewards.components {
                let column = components.entry(&component.name).or_insert_with(|| json!([]));
                if let Value::Array(column) = column {
                    column.resize(found.rewards.len() - 1, Value::Null);
                    column.push(json!(component.value()));
                }
            }
        }
    }
    for column in components.values_mut().filter_map(Value::as_array_mut) {
        column.resize(found.rewards.len(), Value::Null);
    }
    Completions { components, ..found }
}
