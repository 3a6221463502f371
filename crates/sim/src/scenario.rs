//! Input of a simulation: the scheduler's settings, the workload, the hardware and failures.

use rloom_core::OnUpdate;
use rloom_sched::{Priority, SchedulerSettings};
use serde::{Deserialize, Serialize};

use super::{Distribution, Hardware, ScenarioError};

/// Composition of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Samples per group.
    pub group_size: u32,
    /// Prompt tokens; the same for all samples of a group.
    pub prompt_tokens: Distribution,
    /// Tokens that the policy generates per turn.
    pub turn_tokens: Distribution,
    /// Correlation of the lengths within a group: 0 for independent samples, 1 for equal lengths.
    pub group_correlation: f64,
    /// Turns per sample, at least one.
    pub turns: Distribution,
    /// Tokens of the environment's observation after a turn that is not the last.
    pub observation_tokens: Distribution,
    /// Latency of the environment per observation, in seconds.
    pub environment_seconds: Distribution,
    /// Time from a sample's last token to its reward, in seconds.
    pub reward_seconds: Distribution,
    /// Fraction found in the prefix cache, of a prompt that another sample of the group has read and of the context of
    /// the previous turn: at 0 everything is read again, at 1 only new tokens are.
    pub prefix_cache: f64,
    /// Fraction of the groups filtered out before training.
    pub filter_rate: f64,
}

/// Failures of groups and replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// Fraction of the groups that fail, when their first sample is scored.
    pub group_rate: f64,
    /// Mean time between failures of one replica, in seconds; 0 for none.
    pub replica_seconds: f64,
    /// Time until a failed replica is back, in seconds. Its sequences restart their turns on other replicas.
    pub restart_seconds: f64,
}

impl Failures {
    /// No failures.
    pub const NONE: Self = Self { group_rate: 0.0, replica_seconds: 0.0, restart_seconds: 0.0 };
}

/// A stage and the environment that it runs in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Settings of the scheduler.
    pub scheduler: SchedulerSettings,
    /// Policy for in-flight sequences when new weights arrive.
    pub on_update: OnUpdate,
    /// Order of the queue for replicas.
    pub priority: Priority,
    /// Composition of a group.
    pub workload: Workload,
    /// Speed of rollout and training.
    pub hardware: Hardware,
    /// Failures of groups and replicas.
    pub failures: Failures,
    /// Seed of the random streams.
    pub seed: u64,
    /// Limit on simulated events, since a scenario in which no group can be trained would never end.
    pub max_events: u64,
}

impl Scenario {
    /// Rejects invalid values.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        self.hardware.check()?;
        let w = &self.workload;
        for (name, distribution) in [
            ("prompt_tokens", &w.prompt_tokens),
            ("turn_tokens", &w.turn_tokens),
            ("turns", &w.turns),
            ("observation_tokens", &w.observation_tokens),
            ("environment_seconds", &w.environment_seconds),
            ("reward_seconds", &w.reward_seconds),
        ] {
            distribution.check(name)?;
        }
        if w.group_size == 0 {
            return Err(ScenarioError::EmptyGroup);
        }
        for (name, value) in [
            ("group_correlation", w.group_correlation),
            ("prefix_cache", w.prefix_cache),
            ("filter_rate", w.filter_rate),
            ("group_rate", self.failures.group_rate),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ScenarioError::Fraction { name, value });
            }
        }
        let f = &self.failures;
        for (name, seconds) in
            [("replica_seconds", f.replica_seconds), ("restart_seconds", f.restart_seconds)]
        {
            if seconds.is_nan() || seconds < 0.0 {
                return Err(ScenarioError::Duration { name });
            }
        }
        Ok(())
    }
}
