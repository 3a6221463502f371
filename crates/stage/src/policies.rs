//! The policies of a stage.

use rloom_core::{Group, PolicyId, PolicyVersion};
use rloom_engine::PublishedPolicy;

/// The frozen policies of a stage.
#[derive(Debug, Clone, Default)]
pub struct StagePolicies {
    /// Their ids, with their names in checkpoints.
    pub frozen: Vec<(PolicyId, String)>,
}

impl StagePolicies {
    /// Their ids.
    pub(crate) fn ids(&self) -> Vec<PolicyId> {
        self.frozen.iter().map(|(id, _)| *id).collect()
    }

    /// Oldest version among the tokens of a group that trained policies have sampled: weights that do not change have no age.
    pub(crate) fn oldest_version(&self, group: &Group) -> Option<PolicyVersion> {
        let is_frozen = |policy: PolicyId| self.frozen.iter().any(|(frozen, _)| *frozen == policy);
        let spans = group.episodes.iter().flat_map(|episode| &episode.segments).flat_map(|s| &s.versions);
        spans.filter(|span| !is_frozen(span.policy)).map(|span| span.version).min()
    }

    /// Weights of frozen policies with their names.
    pub(crate) fn named(&self, weights: &[PublishedPolicy]) -> Vec<(String, PublishedPolicy)> {
        let named = |own: &PublishedPolicy| {
            let (_, name) = self.frozen.iter().find(|(id, _)| *id == own.policy)?;
            Some((name.clone(), own.clone()))
        };
        weights.iter().filter_map(named).collect()
    }
}
