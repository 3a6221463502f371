use serde::{Deserialize, Serialize};

use crate::{PolicyVersion, Task, Ticket, Trajectory};

/// What an episode is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Trained on.
    Train,
    /// Gives a baseline and is never trained on.
    Baseline,
}

/// One named part of a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RewardComponent {
    /// Its name, as `reward/<name>` shows it.
    pub name: String,
    /// Its weight in the sum.
    pub weight: f64,
    /// What the verifier gave; `None` where it does not apply to this episode.
    pub value: Option<f64>,
}

/// What an episode earned.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rewards {
    /// Named parts, in configuration order.
    pub components: Vec<RewardComponent>,
    /// Whether the task was solved, judged by the outcome verifier (the one that evaluation counts).
    pub solved: Option<bool>,
    /// Whether an answer could be read from the completion at all.
    pub parsed: Option<bool>,
}

impl Rewards {
    /// The weighted sum of the components that apply; `None` when none does.
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

/// One attempt: one or more segments that share an outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// What it is for.
    pub role: Role,
    /// Its trajectories; a single-turn episode has one.
    pub segments: Vec<Trajectory>,
    /// What it earned.
    pub rewards: Rewards,
}

impl Episode {
    /// Number of policy tokens over all segments.
    pub fn policy_tokens(&self) -> usize {
        self.segments.iter().map(Trajectory::policy_tokens).sum()
    }
}

/// All attempts at one task that are compared with each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its place in the stage.
    pub ticket: Ticket,
    /// What was attempted.
    pub task: Task,
    /// The attempts.
    pub episodes: Vec<Episode>,
}

impl Group {
    /// The oldest policy version among its policy tokens.
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.episodes.iter().flat_map(|e| &e.segments).filter_map(Trajectory::oldest_version).min()
    }
}
