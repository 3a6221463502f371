//! What is simulated: the scheduler's settings, the work, the hardware and what goes wrong.

use rloom_core::OnUpdate;
use rloom_sched::{Priority, SchedulerSettings};
use serde::{Deserialize, Serialize};

use super::{Distribution, Hardware, SimError};

/// What a group is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Samples of a group.
    pub group_size: u32,
    /// Tokens of a prompt; the same for the samples of a group.
    pub prompt_tokens: Distribution,
    /// Tokens that the policy generates in one turn.
    pub turn_tokens: Distribution,
    /// How much of a sample's luck with lengths is its group's: 0 for none (samples are independent), 1 for all.
    pub group_correlation: f64,
    /// Turns of a sample, at least one.
    pub turns: Distribution,
    /// Tokens with which the environment answers a turn that is not the last.
    pub observation_tokens: Distribution,
    /// Seconds for which it thinks about it.
    pub environment_seconds: Distribution,
    /// Seconds from a sample's last token to its reward.
    pub reward_seconds: Distribution,
    /// Share of a prompt that another sample of the group has left in the cache, and of a context that the turn
    /// before has: 0 reads everything anew, 1 only what is new.
    pub prefix_cache: f64,
    /// Share of the groups that are taken out before training.
    pub filter_rate: f64,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// Share of the groups that fail, when their first sample is done.
    pub group_rate: f64,
    /// Mean seconds between two failures of one replica; 0 for never.
    pub replica_seconds: f64,
    /// Seconds until it is back. Its sequences start their turns again elsewhere.
    pub restart_seconds: f64,
}

impl Failures {
    /// Nothing goes wrong.
    pub const NONE: Self = Self { group_rate: 0.0, replica_seconds: 0.0, restart_seconds: 0.0 };
}

/// A world and the stage that runs in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// What the scheduler is told.
    pub scheduler: SchedulerSettings,
    /// What becomes of sequences when new weights come.
    pub on_update: OnUpdate,
    /// Who goes first.
    pub priority: Priority,
    /// What a group is made of.
    pub workload: Workload,
    /// The machines.
    pub hardware: Hardware,
    /// What goes wrong.
    pub failures: Failures,
    /// Names the random streams.
    pub seed: u64,
    /// Gives up after so many events: a world in which nothing is ever trained has no end.
    pub most_events: u64,
}

impl Scenario {
    /// Refuses what cannot be simulated.
    pub(crate) fn check(&self) -> Result<(), SimError> {
        self.hardware.check()?;
        let w = &self.workload;
        for (what, distribution) in [
            ("prompt tokens", &w.prompt_tokens),
            ("turn tokens", &w.turn_tokens),
            ("turns", &w.turns),
            ("observation tokens", &w.observation_tokens),
            ("environment seconds", &w.environment_seconds),
            ("reward seconds", &w.reward_seconds),
        ] {
            distribution.check(what)?;
        }
        let wrong =
            |what: &str, why: &str| Err(SimError::Scenario { what: what.to_owned(), why: why.to_owned() });
        if w.group_size == 0 {
            return wrong("group size", "a group has at least one sample");
        }
        for (what, share) in [
            ("group correlation", w.group_correlation),
            ("prefix cache", w.prefix_cache),
            ("filter rate", w.filter_rate),
            ("rate of failing groups", self.failures.group_rate),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return wrong(what, "it is a share, from 0 to 1");
            }
        }
        let f = &self.failures;
        if !(f.replica_seconds >= 0.0 && f.restart_seconds >= 0.0) {
            return wrong("failures of replicas", "seconds are at least 0");
        }
        Ok(())
    }
}
