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
    /// Value before weighting; `None` if the component does not apply to this episode, or has failed.
    pub value: Option<f64>,
    /// Why the component failed to judge the episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl RewardComponent {
    /// A component with its value; `None` if it does not apply.
    pub fn new(name: impl Into<String>, weight: f64, value: Option<f64>) -> Self {
        Self { name: name.into(), weight, value, failure: None }
    }
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
    /// The failure of a component that counts. Such an episode has no reward: that of the other components would treat the
    /// failure as a value of 0.
    pub fn failure(&self) -> Option<&str> {
        self.components.iter().filter(|c| c.weight != 0.0).find_map(|c| c.failure.as_deref())
    }

    /// The weighted sum of the components that apply; `None` if none does or one has failed.
    pub fn total(&self) -> Option<f64> {
        if self.failure().is_some() {
            return None;
        }
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
