//! What a recipe may say about an algorithm.

pub(crate) mod choices;
pub(crate) mod layer;

pub use choices::{
    AdvantageKind, Backbone, CorrectionLevel, Keep, Level, LossKind, Proximal, RatioTo, RejectLevel,
    StatisticFrom, WeightAction, WeightLevel,
};

use serde::{Deserialize, Serialize};

use self::layer::Layer;
use crate::{Aggregation, KlEstimator, KlPlacement};

impl Layer for Aggregation {}
impl Layer for KlEstimator {}
impl Layer for KlPlacement {}

/// A table of overrides: every key may be left out, an unknown one is an error.
macro_rules! overrides {
    ($prefix:literal $(#[$about:meta])* $table:ident { $($(#[$doc:meta])* $key:ident: $type:ty,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $table {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$type>,)+
        }

        impl Layer for $table {
            fn over(self, below: Self) -> Self {
                Self { $($key: self.$key.over(below.$key),)+ }
            }

            fn collect_keys(&self, _name: &'static str, keys: &mut Vec<&'static str>) {
                $(self.$key.collect_keys(concat!($prefix, stringify!($key)), keys);)+
            }
        }
    };
}

overrides! {
    ""
    /// A stage's `[algorithm]`: overrides of the preset that the stage's `method` names.
    AlgorithmSettings {
        /// Episodes per task.
        group_size: u32,
        /// How rewards become advantages.
        advantage: AdvantageKind,
        /// Where the mean that is subtracted comes from (`normalized`).
        mean_from: StatisticFrom,
        /// Where the standard deviation that is divided by comes from (`normalized`).
        std_from: StatisticFrom,
        /// What is added to a standard deviation before it divides.
        std_epsilon: f64,
        /// Whether to divide by the group's standard deviation, too (`max_at_g`, `gigpo`).
        divide_by_std: bool,
        /// Discount: per policy token, in `gigpo` per step.
        gamma: f64,
        /// λ of generalised advantage estimation.
        lambda: f64,
        /// The fixed baseline (`topr`).
        baseline: f64,
        /// ω: weight of the advantage of steps (`gigpo`).
        step_weight: f64,
        /// Which episodes are kept (`raft_pp`).
        keep: Keep,
        /// Whether advantages are whitened over the batch's policy tokens.
        whiten: bool,
        /// The policy loss.
        loss: LossKind,
        /// What is one action (`reinforce`, `topr`).
        level: Level,
        /// ε_low: the ratio's lower bound is 1 − ε_low; of `gmpo`, that of the log-ratio is −ε_low.
        clip_low: f64,
        /// ε_high: the ratio's upper bound is 1 + ε_high; of `gmpo`, that of the log-ratio is ε_high.
        clip_high: f64,
        /// The ratio's bound for negative advantages; absent for none.
        dual_clip: f64,
        /// Upper bound of the held ratio (`cispo`, `dppo_*`).
        weight_cap: f64,
        /// Lower bound of the held ratio (`cispo`).
        weight_floor: f64,
        /// Temperature of the gate where A > 0 (`sapo`).
        tau_positive: f64,
        /// Temperature of the gate where A < 0 (`sapo`).
        tau_negative: f64,
        /// δ: how far a token may have moved in the advantage's direction (`dppo_*`).
        divergence_limit: f64,
        /// Share of the tokens that are picked by covariance (`clip_cov`, `kl_cov`).
        cov_share: f64,
        /// Covariance above which a token may be picked (`clip_cov`).
        cov_low: f64,
        /// Covariance below which a token may be picked (`clip_cov`).
        cov_high: f64,
        /// Weight of the penalty on picked tokens (`kl_cov`).
        cov_coef: f64,
        /// What the importance ratio is taken to.
        ratio_to: RatioTo,
        /// Where the log-probabilities of the proximal policy come from.
        proximal: Proximal,
        /// How per-token terms become one number.
        loss_aggregation: Aggregation,
        /// Weight of the entropy bonus.
        entropy_coef: f64,
        /// Passes over each batch.
        epochs: u32,
        /// Optimiser steps per pass.
        minibatches: u32,
        /// Divergence from the reference model.
        kl: KlSettings,
        /// What makes up for a sampler that is not the policy being trained.
        correction: CorrectionSettings,
        /// Which groups and episodes are not trained on.
        filter: FilterSettings,
        /// The penalty on completions that come near their limit.
        overlong: OverlongSettings,
        /// Holds the entropy near a target.
        entropy_control: EntropyControlSettings,
        /// The learned value (`gae`).
        critic: CriticSettings,
        /// The implicit process-reward model (`prime`).
        prm: PrmSettings,
    }
}

overrides! {
    "kl."
    /// `[algorithm.kl]`.
    KlSettings {
        /// Its weight; 0 loads no reference.
        coef: f64,
        /// k1 (in the reward), k2, k3 or k3+ (in the loss).
        estimator: KlEstimator,
        /// In the reward or in the loss.
        placement: KlPlacement,
        /// Whether the divergence in the loss is multiplied by the importance ratio.
        ratio: bool,
        /// Divergence (nats per token) that the weight in the reward is steered to; absent for a fixed weight.
        target: f64,
        /// Episodes over which the weight adapts.
        horizon: f64,
    }
}

overrides! {
    "correction."
    /// `[algorithm.correction]`.
    CorrectionSettings {
        /// Over what the weight multiplies up, or that there is none.
        level: CorrectionLevel,
        /// What becomes of a weight outside its bounds.
        action: WeightAction,
        /// Lower bound of the weight.
        low: f64,
        /// Upper bound of the weight.
        high: f64,
        /// Divergence by which tokens or sequences are rejected.
        reject: KlEstimator,
        /// What is rejected together.
        reject_level: RejectLevel,
        /// Smallest divergence that is not rejected (k1, which can be negative).
        reject_low: f64,
        /// Largest divergence that is not rejected.
        reject_high: f64,
    }
}

overrides! {
    "filter."
    /// `[algorithm.filter]`.
    FilterSettings {
        /// Whether groups whose outcomes are all equal are replaced by others.
        dynamic_sampling: bool,
        /// Batches' worth of groups that may be drawn for one batch before the run gives up; with stale samples for each
        /// of the batches that are sampled at once.
        max_draws: u32,
        /// Whether truncated episodes are not trained on.
        mask_truncated: bool,
        /// Whether groups without contrast are not trained on, by KL and entropy neither.
        mask_zero_variance: bool,
        /// Episodes with fewer policy tokens are not trained on.
        min_tokens: u64,
        /// Episodes with more policy tokens are not trained on.
        max_tokens: u64,
    }
}

overrides! {
    "overlong."
    /// `[algorithm.overlong]`.
    OverlongSettings {
        /// Over how many tokens before the limit the penalty grows; a fifth of the limit where it is not said.
        buffer: u64,
        /// The full penalty; 0 for none.
        factor: f64,
    }
}

overrides! {
    "entropy_control."
    /// `[algorithm.entropy_control]`.
    EntropyControlSettings {
        /// Entropy (nats per token) below which the bonus grows.
        target: f64,
        /// How much the weight changes per optimiser step.
        step: f64,
        /// Smallest weight.
        min: f64,
        /// Largest weight.
        max: f64,
    }
}

overrides! {
    "critic."
    /// `[algorithm.critic]`.
    CriticSettings {
        /// What the value head sits on.
        backbone: Backbone,
        /// The critic's learning rate as a multiple of the policy's (`own`).
        learning_rate_scale: f64,
        /// Weight of the value loss beside the policy's (`shared`).
        coef: f64,
        /// ε: how far a value may move from what it was, in the loss; 0 for no bound.
        clip: f64,
        /// Batches at the start that train the critic alone (`own`).
        warmup_batches: u64,
    }
}

overrides! {
    "prm."
    /// `[algorithm.prm]`.
    PrmSettings {
        /// β: the scale of implicit rewards.
        beta: f64,
        /// The process-reward model's learning rate as a multiple of the policy's.
        learning_rate_scale: f64,
    }
}

impl AlgorithmSettings {
    /// The keys that are set, dotted.
    pub fn keys(&self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        self.collect_keys("", &mut keys);
        keys
    }
}
