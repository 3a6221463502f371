//! Models that are trained together with the policy.

use crate::{Backbone, ValueLoss};

/// The learned value of PPO.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CriticSpec {
    /// Backbone of the value head.
    pub backbone: Backbone,
    /// Its learning rate as a multiple of the policy's; 1 on a shared backbone.
    pub learning_rate_scale: f64,
    /// Its loss.
    pub value: ValueLoss,
    /// Batches at the start that train the critic alone.
    pub warmup_batches: u64,
    /// It values what several agents know together, before each round.
    pub is_joint: bool,
}

impl CriticSpec {
    /// True if the value head shares the policy's backbone.
    pub fn is_shared(&self) -> bool {
        self.backbone == Backbone::Shared
    }
}

/// A reward model that a stage trains instead of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RewardModelSpec {
    /// One value per completion, learned from preferences.
    Sequence {
        /// Weight of the penalty on the square of a pair's summed rewards.
        center: f64,
    },
    /// One value per step, learned from labelled steps.
    Process,
}

/// PRIME's implicit process-reward model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrmSpec {
    /// β.
    pub beta: f64,
    /// Its learning rate as a multiple of the policy's.
    pub learning_rate_scale: f64,
}
