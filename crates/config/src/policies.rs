//! `[policies]`: the policies of a run besides the main one.

use std::ops::Range;

use rloom_core::PolicyId;
use rloom_model::OptimizerSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Config;

/// Name of the policy that every run has.
pub const MAIN_POLICY: &str = "main";
/// Value of `model` for a model of the run's architecture with other random weights.
pub const NEW_MODEL: &str = "new";

/// One of `[policies.NAME]`: a policy in addition to the main one, which agents of the environment may name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySettings {
    /// Initial weights: a Hugging Face folder, such as a checkpoint of an earlier run, a name on the hub, or `"new"` for a model
    /// of `[model.new]` with other random weights. Its tokenizer is that of the run's model. Default: the weights that the main
    /// policy starts the stage from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Keeps the weights as they are: an opponent or a partner that is not trained.
    pub frozen: bool,
    /// Overrides of `[trainer]` for this policy.
    #[serde(skip_serializing_if = "PolicyTrainer::is_empty")]
    pub trainer: PolicyTrainer,
    /// Plays earlier versions of a trained policy instead of weights of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub league: Option<LeagueSettings>,
}

/// `[policies.NAME.trainer]`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyTrainer {
    /// Peak learning rate, more than 0. Warm-up and schedule are those of `[trainer]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Decoupled weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Maximum global gradient norm; 0 disables clipping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_grad_norm: Option<f64>,
}

impl PolicyTrainer {
    /// True if nothing is overridden.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The optimiser of the policy, from that of the stage.
    pub fn optimizer(&self, stage: &OptimizerSettings) -> OptimizerSettings {
        OptimizerSettings {
            learning_rate: self.learning_rate.unwrap_or(stage.learning_rate),
            weight_decay: self.weight_decay.unwrap_or(stage.weight_decay),
            max_grad_norm: self.max_grad_norm.unwrap_or(stage.max_grad_norm),
            ..stage.clone()
        }
    }

    /// The learning rate as a multiple of that of the stage.
    pub fn learning_rate_scale(&self, stage: &OptimizerSettings) -> f64 {
        self.learning_rate.map_or(1.0, |rate| rate / stage.learning_rate)
    }
}

/// `[policies.NAME.league]`: opponents among earlier versions of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LeagueSettings {
    /// The trained policy whose versions are kept.
    pub of: String,
    /// Steps between the versions that are kept, at least 1. The one that the stage starts with is the first.
    pub every: u64,
    /// Number of versions that are kept, the newest ones; 1 to 16. Each has a rollout engine.
    pub size: u32,
    /// Choice of the opponent of a group.
    pub draw: OpponentDraw,
}

impl Default for LeagueSettings {
    fn default() -> Self {
        Self { of: MAIN_POLICY.to_owned(), every: 20, size: 5, draw: OpponentDraw::default() }
    }
}

/// Choice of an opponent among the versions that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpponentDraw {
    /// All with the same probability.
    Uniform,
    /// Those that win more often are drawn more often: with a weight of (1 − win rate against it)², and at least 0.01.
    #[default]
    WinRate,
}

impl PolicySettings {
    /// True if the policy is trained.
    pub fn is_trained(&self) -> bool {
        !self.frozen && self.league.is_none()
    }

    /// Number of policies that the rollout engines see: a league has one for each version that it keeps.
    pub fn ids(&self) -> u32 {
        self.league.as_ref().map_or(1, |league| league.size)
    }
}

impl Config {
    /// Ids of the policies besides the main one, in the order of their names.
    pub fn policy_ids(&self) -> impl Iterator<Item = (&str, &PolicySettings, Range<u32>)> {
        let mut next = PolicyId::MAIN.0 + 1;
        self.policies.iter().map(move |(name, settings)| {
            let first = next;
            next += settings.ids();
            (name.as_str(), settings, first..next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_of_the_trainer_keep_the_schedule() {
        let stage =
            OptimizerSettings { learning_rate: 2e-3, warmup_steps: 7, ..OptimizerSettings::default() };
        let own = PolicyTrainer { learning_rate: Some(1e-3), ..PolicyTrainer::default() };
        let optimizer = own.optimizer(&stage);
        assert_eq!((optimizer.learning_rate, optimizer.warmup_steps), (1e-3, 7));
        assert_eq!(own.learning_rate_scale(&stage), 0.5);
        assert_eq!(PolicyTrainer::default().learning_rate_scale(&stage), 1.0);
    }
}
