//! What a recipe may say about an algorithm.

use serde::{Deserialize, Serialize};

use crate::{Aggregation, KlEstimator, KlPlacement};

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageKind {
    /// (R − mean)/(std + ε) over the group.
    Group,
    /// R − mean over the group.
    GroupMean,
    /// R − mean of the others in the group.
    Rloo,
    /// Discounted return per token, whitened over the batch.
    ReinforcePp,
    /// R − mean over the group, whitened over the batch.
    ReinforcePpBaseline,
}

impl AdvantageKind {
    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::GroupMean => "group_mean",
            Self::Rloo => "rloo",
            Self::ReinforcePp => "reinforce_pp",
            Self::ReinforcePpBaseline => "reinforce_pp_baseline",
        }
    }
}

/// The policy loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// PPO's clipped ratio.
    PpoClip,
    /// Plain policy gradient.
    Reinforce,
}

impl LossKind {
    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::PpoClip => "ppo_clip",
            Self::Reinforce => "reinforce",
        }
    }
}

/// What a loss takes as one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A token.
    Token,
    /// A whole completion.
    Sequence,
}

impl Level {
    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Sequence => "sequence",
        }
    }
}

/// A stage's `[algorithm]`: overrides of the preset that the stage's `method` names.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlgorithmSettings {
    /// Episodes per task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u32>,
    /// How rewards become advantages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<AdvantageKind>,
    /// What is added to the group's standard deviation (`group`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std_epsilon: Option<f64>,
    /// Discount per policy token (`reinforce_pp`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// Whether advantages are whitened over the batch's policy tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten: Option<bool>,
    /// The policy loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossKind>,
    /// What `reinforce` takes as one action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// ε_low of the clip: the ratio's lower bound is 1 − ε_low.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_low: Option<f64>,
    /// ε_high of the clip: the ratio's upper bound is 1 + ε_high.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// The ratio's bound for negative advantages; absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// How per-token terms become one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_aggregation: Option<Aggregation>,
    /// Weight of the entropy bonus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy_coef: Option<f64>,
    /// Passes over each batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
    /// Optimiser steps per pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minibatches: Option<u32>,
    /// Divergence from the reference model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<KlSettings>,
}

/// A stage's `[algorithm.kl]`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlSettings {
    /// Its weight; 0 loads no reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coef: Option<f64>,
    /// k1 (in the reward), k2 or k3 (in the loss).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<KlEstimator>,
    /// In the reward or in the loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<KlPlacement>,
}
