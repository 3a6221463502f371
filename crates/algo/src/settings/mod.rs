//! Settings of an algorithm in a recipe: `[stage.algorithm]`.

pub(crate) mod choices;
pub(crate) mod function;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod layer;
mod renamed;
mod text;

pub use choices::{
    Backbone, CorrectionLevel, Keep, Level, Proximal, RatioTo, RejectLevel, StatisticFrom, WeightAction,
    WeightLevel,
};
pub use function::AlgorithmFunction;
pub use keys::{KeyInfo, KeyType, Value};
pub use kind::{Kind, KindSettings};
pub use renamed::RENAMED_KEYS;
pub use text::Text;

use serde::{Deserialize, Serialize};

use self::layer::{Layer, plain};
use crate::{
    AdvantageSettings, Aggregation, DistillationSettings, KlEstimator, KlPlacement, LossSettings,
    PreferenceSettings,
};

plain!(Aggregation, |aggregation| Value::Name(aggregation.name()));
plain!(KlEstimator, |estimator| Value::Name(estimator.name()));
plain!(KlPlacement, |placement| Value::Name(placement.name()));

/// A table of overrides: every key may be left out, an unknown one is an error.
macro_rules! overrides {
    ($prefix:literal $(#[$about:meta])* $table:ident { $($(#[doc = $doc:literal])+ $key:ident: $type:ty,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $table {
            $($(#[doc = $doc])+ #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$type>,)+
        }

        impl Layer for $table {
            fn over(self, below: Self) -> Self {
                Self { $($key: self.$key.over(below.$key),)+ }
            }

            fn collect(&self, _name: &'static str, keys: &mut Vec<(&'static str, Value)>) {
                $(self.$key.collect(concat!($prefix, stringify!($key)), keys);)+
            }

            fn only(self, _name: &'static str, wanted: &str) -> Option<Self> {
                let only = Self {
                    $($key: self.$key.only(concat!($prefix, stringify!($key)), wanted).flatten(),)+
                };
                (only != Self::default()).then_some(only)
            }
        }

        impl $table {
            /// The keys of the table with their documentation; a key that is a table itself is among them.
            pub(crate) const DOCS: &'static [(&'static str, &'static str)] =
                &[$((concat!($prefix, stringify!($key)), concat!($($doc,)+).trim_ascii()),)+];
        }
    };
}

overrides! {
    ""
    /// `[stage.algorithm]`: overrides of the method's preset.
    AlgorithmSettings {
        /// Episodes sampled per task.
        group_size: u32,
        /// Advantage estimator: a name, or a table of `kind` and its settings.
        advantage: AdvantageSettings,
        /// Whitens advantages over the batch's policy tokens.
        whiten: bool,
        /// Policy loss: a name, or a table of `kind` and its settings.
        loss: LossSettings,
        /// Preference loss of the method: a table of its settings.
        preference: PreferenceSettings,
        /// Divergence of the student from its teacher: a name, or a table of `kind` and its settings.
        distillation: DistillationSettings,
        /// Policy in the denominator of the importance ratio: old or behavior.
        ratio_to: RatioTo,
        /// Source of the proximal policy's log-probabilities: sampler, recompute or log_linear.
        proximal: Proximal,
        /// Normaliser of the per-token terms.
        loss_aggregation: Aggregation,
        /// Weight of the entropy bonus.
        entropy_coef: f64,
        /// Passes over each batch.
        epochs: u32,
        /// Optimiser steps per pass.
        minibatches: u32,
        /// Scale α of uniform noise on the embeddings in training (NEFTune): α/√(L·d) for a sequence of L tokens and
        /// embeddings of width d. Methods that learn from demonstrations have it.
        neftune_noise_alpha: f64,
        /// Divergence from the reference model.
        kl: KlSettings,
        /// Correction for a sampler that is not the policy being trained.
        correction: CorrectionSettings,
        /// Groups and episodes that are not trained on.
        filter: FilterSettings,
        /// Penalty on completions near their length limit.
        overlong: OverlongSettings,
        /// Controller that keeps the entropy near a target.
        entropy_control: EntropyControlSettings,
        /// Learned value (`gae`).
        critic: CriticSettings,
        /// Implicit process-reward model (`prime`).
        prm: PrmSettings,
        /// Reward model (`reward_model`).
        reward_model: RewardModelSettings,
    }
}

overrides! {
    "kl."
    /// `[stage.algorithm.kl]`.
    KlSettings {
        /// Weight of the KL to the reference model; 0 loads no reference.
        coef: f64,
        /// Estimator of the KL: k1 in the reward; k2, k3 or k3+ in the loss.
        estimator: KlEstimator,
        /// Place of the KL: reward or loss.
        placement: KlPlacement,
        /// Multiplies the KL in the loss by the importance ratio.
        ratio: bool,
        /// Target of the KL in nats per token, to which the weight in the reward adapts; unset for a fixed weight.
        target: f64,
        /// Episodes over which the weight adapts.
        horizon: f64,
    }
}

overrides! {
    "correction."
    /// `[stage.algorithm.correction]`.
    CorrectionSettings {
        /// Unit of the weight exp(old − beh): none, token, sequence or geometric.
        level: CorrectionLevel,
        /// Treatment of a weight outside its bounds: clamp or mask.
        action: WeightAction,
        /// Lower bound of the weight.
        low: f64,
        /// Upper bound of the weight.
        high: f64,
        /// Estimator of the divergence from the sampler by which tokens or sequences are rejected: k1, k2 or k3.
        reject: KlEstimator,
        /// Unit that is rejected: token, sequence_mean or sequence_max.
        reject_level: RejectLevel,
        /// Smallest divergence that is not rejected; for k1, which can be negative.
        reject_low: f64,
        /// Largest divergence that is not rejected.
        reject_high: f64,
    }
}

overrides! {
    "filter."
    /// `[stage.algorithm.filter]`.
    FilterSettings {
        /// Replaces groups whose outcomes are all equal.
        dynamic_sampling: bool,
        /// Replaces groups that a Python function does not keep: `file.py:name`, or `caller:name` for one given to
        /// `rloom.train` in Python.
        function: Text,
        /// The interpreter of the function.
        python: Text,
        /// Longest time for a call of the function in seconds.
        timeout_seconds: f64,
        /// Batches' worth of groups that may be drawn for one batch before the run stops; with stale samples, for each
        /// of the batches that are sampled at once.
        max_draws: u32,
        /// Excludes truncated episodes from training.
        mask_truncated: bool,
        /// Excludes groups whose rewards are all equal from training, including by KL and entropy.
        mask_zero_variance: bool,
        /// Excludes episodes with fewer policy tokens.
        min_tokens: u64,
        /// Excludes episodes with more policy tokens.
        max_tokens: u64,
    }
}

overrides! {
    "overlong."
    /// `[stage.algorithm.overlong]`.
    OverlongSettings {
        /// Tokens before the length limit over which the penalty grows; a fifth of the limit by default.
        buffer: u64,
        /// Full penalty at the length limit; 0 for none.
        factor: f64,
    }
}

overrides! {
    "entropy_control."
    /// `[stage.algorithm.entropy_control]`.
    EntropyControlSettings {
        /// Entropy in nats per token below which the bonus grows.
        target: f64,
        /// Change of the weight per optimiser step.
        step: f64,
        /// Smallest weight.
        min: f64,
        /// Largest weight.
        max: f64,
    }
}

overrides! {
    "critic."
    /// `[stage.algorithm.critic]`.
    CriticSettings {
        /// Backbone of the value head: own or shared.
        backbone: Backbone,
        /// Learning rate of the critic as a multiple of the policy's (own backbone).
        learning_rate_scale: f64,
        /// Weight of the value loss relative to the policy's (shared backbone).
        coef: f64,
        /// Bound ε on the change of a value from its old one in the loss; 0 for no bound.
        clip: f64,
        /// Batches at the start that train only the critic (own backbone).
        warmup_batches: u64,
    }
}

overrides! {
    "prm."
    /// `[stage.algorithm.prm]`.
    PrmSettings {
        /// Learning rate of the process-reward model as a multiple of the policy's.
        learning_rate_scale: f64,
    }
}

overrides! {
    "reward_model."
    /// `[stage.algorithm.reward_model]`.
    RewardModelSettings {
        /// Weight c of (r_c + r_r)², which keeps the rewards of a pair around 0; 0 for none.
        center_rewards_coefficient: f64,
    }
}

impl AlgorithmSettings {
    /// The keys that are set, dotted.
    pub fn keys(&self) -> Vec<&'static str> {
        self.values().into_iter().map(|(key, _)| key).collect()
    }

    /// The keys that are set, dotted, with their values. The value of `advantage` and of `loss` is the kind.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        let mut values = Vec::new();
        self.collect("", &mut values);
        values
    }
}
