use serde::{Deserialize, Serialize};

use crate::{PolicyVersion, Task, Ticket, Trajectory};

/// Use of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Trained on.
    Train,
    /// Provides a baseline for the advantage; never trained on.
    Baseline,
}

/// One named component of a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RewardComponent {
    /// Name, as in the metric `reward/<name>`.
    pub name: String,
    /// Weight in the sum.
    pub weight: f64,
    /// Value before weighting; `None` if the component does not apply to this episode.
    pub value: Option<f64>,
}

/// The rewards of an episode.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rewards {
    /// Named components, in configuration order.
    pub components: Vec<RewardComponent>,
    /// True if the outcome verifier (the one that evaluation counts) accepts the episode.
    pub solved: Option<bool>,
    /// True if an answer could be read from the completion.
    pub parsed: Option<bool>,
    /// True until the components that judge whole groups have judged the episode's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pending: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Rewards {
    /// The weighted sum of the components that apply; `None` if none does.
    pub fn total(&self) -> Option<f64> {
        let mut applies = false;
        let mut sum = 0.0;
        for c in &self.components {
            if let Some(v) = c.value {
                applies = true;
                sum += c.weight * v;
            }
        }
        applies.then_some(sum)
    }
}

/// One attempt at a task: one or more segments that share an outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Use of the episode.
    pub role: Role,
    /// Trajectories of the episode; a single-turn episode has one.
    pub segments: Vec<Trajectory>,
    /// Rewards of the episode.
    pub rewards: Rewards,
}

impl Episode {
    /// Number of policy tokens over all segments.
    pub fn policy_tokens(&self) -> usize {
        self.segments.iter().map(Trajectory::policy_tokens).sum()
    }
}

/// The episodes of one task, compared with each other by the advantage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Unique number of the group within its stage.
    pub ticket: Ticket,
    /// The task.
    pub task: Task,
    /// The attempts at it.
    pub episodes: Vec<Episode>,
}

impl Group {
    /// Oldest policy version among the policy tokens.
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.episodes.iter().flat_map(|e| &e.segments).filter_map(Trajectory::oldest_version).min()
    }
}
