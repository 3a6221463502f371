//! The table of methods: name, page and preset of each.
//!
//! A preset is a point in {advantage × loss × correction × KL × aggregation × filters}, as settings. Settings that a
//! preset does not set have the defaults of its parts.

use crate::settings::choices::choices;
use crate::{
    AdvantageKind as A,
    Aggregation::{self, ConstantLength, SequenceMean, SequenceSum, TokenMean},
    AlgorithmSettings, Backbone, CorrectionLevel, CorrectionSettings, CriticSettings, DistillationKind as D,
    FilterSettings,
    KlEstimator::{self, K1, K2, K3},
    KlPlacement::{self, Loss, Reward},
    KlSettings, Level, LossKind as L, LossSettings, OverlongSettings, PreferenceKind as P, Proximal,
    RewardModelSettings, WeightAction,
};

/// Generates [`Method`] from the table. The page of a method is `docs/algorithms/NAME.md`.
macro_rules! methods {
    ($($(#[doc = $doc:literal])+ $method:ident = $name:literal => $preset:expr,)+) => {
        choices! {
            /// A named algorithm: the `method` of a stage.
            Method { $($(#[doc = $doc])+ $method = $name,)+ }
        }

        impl Method {
            /// Page of the method in Markdown, from `docs/algorithms`.
            pub fn page(self) -> &'static str {
                match self {
                    $(Self::$method => {
                        include_str!(concat!("../../../docs/algorithms/", $name, ".md"))
                    })+
                }
            }

            /// The preset of the method; `None` for methods that learn from demonstrations, which have no settings of their own.
            pub(crate) fn settings(self) -> Option<AlgorithmSettings> {
                match self { $(Self::$method => $preset,)+ }
            }
        }
    };
}

methods! {
    /// Supervised fine-tuning.
    Sft = "sft" => None,
    /// Dynamic fine-tuning.
    Dft = "dft" => None,
    /// Reward model of completions, from preferences.
    RewardModel = "reward_model" => Some(AlgorithmSettings {
        reward_model: Some(RewardModelSettings { center_rewards_coefficient: Some(0.0) }),
        ..AlgorithmSettings::default()
    }),
    /// Reward model of steps, from labelled steps.
    Prm = "prm" => Some(AlgorithmSettings::default()),
    /// Distillation of a teacher's distribution at every token.
    Distill = "distill" => distillation(D::ForwardKl),
    /// Direct preference optimisation.
    Dpo = "dpo" => preference(P::Dpo),
    /// DPO with smoothed labels.
    Cdpo = "cdpo" => preference(P::Cdpo),
    /// DPO that is unbiased for labels that are wrong at a known rate.
    Robust = "robust" => preference(P::Robust),
    /// The hinge of SLiC-HF on log-ratios.
    Hinge = "hinge" => preference(P::Hinge),
    /// Identity preference optimisation.
    Ipo = "ipo" => preference(P::Ipo),
    /// Kahneman-Tversky optimisation.
    Kto = "kto" => preference(P::Kto),
    /// Binary classifier optimisation.
    Bco = "bco" => preference(P::Bco),
    /// Odds-ratio preference optimisation.
    Orpo = "orpo" => preference(P::Orpo),
    /// Contrastive preference optimisation.
    Cpo = "cpo" => preference(P::Cpo),
    /// Simple preference optimisation.
    Simpo = "simpo" => preference(P::Simpo),
    /// Noise contrastive alignment.
    Nca = "nca" => preference(P::Nca),
    /// Efficient exact optimisation.
    Exo = "exo" => preference(P::Exo),
    /// Self-play preference optimisation.
    Sppo = "sppo" => preference(P::Sppo),
    /// Anchored preference optimisation that raises the chosen completion.
    ApoZero = "apo_zero" => preference(P::ApoZero),
    /// Anchored preference optimisation that lowers both completions.
    ApoDown = "apo_down" => preference(P::ApoDown),
    /// Alignment by optimal transport.
    Aot = "aot" => preference(P::Aot),
    /// The loss that DiscoPOP discovered.
    Discopop = "discopop" => preference(P::Discopop),
    /// Weighted preference optimisation: DPO with weights for completions that the policy could have sampled.
    Wpo = "wpo" => preference(P::Wpo),
    /// Mixed preference optimisation: a weighted list of losses.
    Mpo = "mpo" => preference(P::Mpo),
    /// DPO on pairs of the policy's own samples.
    OnlineDpo = "online_dpo" => Some(AlgorithmSettings {
        group_size: Some(2),
        preference: Some(P::Dpo.into()),
        ..AlgorithmSettings::default()
    }),
    /// Group relative policy optimisation.
    Grpo = "grpo" => preset(A::Group, L::PpoClip, SequenceMean),
    /// GRPO without division by the standard deviation and by the length.
    DrGrpo = "dr_grpo" => preset(A::GroupMean, L::PpoClip, ConstantLength),
    /// Decoupled clip and dynamic sampling.
    Dapo = "dapo" => Some(dapo()),
    /// Group sequence policy optimisation.
    Gspo = "gspo" => preset(A::Group, L::Gspo, SequenceMean),
    /// GSPO with a gradient per token.
    GspoToken = "gspo_token" => preset(A::Group, L::GspoToken, SequenceMean),
    /// GSPO without its bias against long answers.
    Luspo = "luspo" => preset(A::Group, L::Luspo, SequenceSum),
    /// Geometric-mean policy optimisation.
    Gmpo = "gmpo" => preset(A::Group, L::Gmpo, SequenceMean),
    /// Clipped importance weights.
    Cispo = "cispo" => preset(A::Group, L::Cispo, TokenMean),
    /// Soft adaptive policy optimisation.
    Sapo = "sapo" => preset(A::Group, L::Sapo, SequenceMean),
    /// Variational sequence-level soft policy optimisation.
    Vespo = "vespo" => preset(A::Group, L::Vespo, TokenMean),
    /// GRPO without the gradient of some tokens of high covariance.
    ClipCov = "clip_cov" => preset(A::Group, L::ClipCov, TokenMean),
    /// GRPO with a penalty on tokens of high covariance.
    KlCov = "kl_cov" => preset(A::Group, L::KlCov, TokenMean),
    /// GRPO with each reward normalised separately.
    Gdpo = "gdpo" => preset(A::Gdpo, L::PpoClip, SequenceMean),
    /// REINFORCE with a leave-one-out baseline.
    Rloo = "rloo" => Some(AlgorithmSettings {
        group_size: Some(4),
        kl: Some(kl(0.05, K1, Reward)),
        ..policy_gradient(A::Rloo, Level::Sequence)
    }),
    /// REINFORCE++.
    ReinforcePp = "reinforce_pp" => Some(AlgorithmSettings {
        group_size: Some(1),
        kl: Some(kl(0.01, K1, Reward)),
        ..grouped(A::ReinforcePp, L::PpoClip, TokenMean)
    }),
    /// REINFORCE++ with the group's mean as baseline.
    ReinforcePpBaseline = "reinforce_pp_baseline" => Some(AlgorithmSettings {
        kl: Some(kl(1e-4, K2, Loss)),
        ..grouped(A::ReinforcePpBaseline, L::PpoClip, TokenMean)
    }),
    /// On-policy REINFORCE with the length-weighted baseline.
    Opo = "opo" => Some(policy_gradient(A::Opo, Level::Sequence)),
    /// Group policy gradient.
    Gpg = "gpg" => Some(policy_gradient(A::Gpg, Level::Token)),
    /// REINFORCE with the greedy episode as baseline.
    Remax = "remax" => Some(AlgorithmSettings {
        group_size: Some(1),
        ..policy_gradient(A::Remax, Level::Sequence)
    }),
    /// Reward-ranked fine-tuning with importance ratio and clip.
    RaftPp = "raft_pp" => preset(A::RaftPp, L::PpoClip, SequenceMean),
    /// Tapered off-policy REINFORCE.
    Topr = "topr" => preset(A::Topr, L::Topr, TokenMean),
    /// Direct reward optimisation.
    Dro = "dro" => preset(A::GroupMean, L::Dro, TokenMean),
    /// Policy mirror descent of Kimi k1.5.
    Kimi = "kimi" => preset(A::GroupMean, L::Kimi, SequenceSum),
    /// REINFORCE on the best of the group.
    MaxAtG = "max_at_g" => Some(policy_gradient(A::MaxAtG, Level::Sequence)),
    /// Proximal policy optimisation with a learned value.
    Ppo = "ppo" => Some(AlgorithmSettings {
        group_size: Some(1),
        kl: Some(KlSettings { coef: Some(0.0), placement: Some(Reward), ..KlSettings::default() }),
        critic: Some(CriticSettings { backbone: Some(Backbone::Own), ..CriticSettings::default() }),
        ..grouped(A::Gae, L::PpoClip, TokenMean)
    }),
    /// PPO with a proximal policy other than the sampler.
    DecoupledPpo = "decoupled_ppo" => Some(decoupled_ppo()),
    /// A trust region of total variation.
    DppoTv = "dppo_tv" => preset(A::Group, L::DppoTv, TokenMean),
    /// A trust region of binary KL.
    DppoKl = "dppo_kl" => preset(A::Group, L::DppoKl, TokenMean),
    /// Implicit process rewards, learned during training.
    Prime = "prime" => preset(A::Prime, L::PpoClip, TokenMean),
    /// Group-in-group policy optimisation, by step.
    Gigpo = "gigpo" => Some(AlgorithmSettings {
        kl: Some(kl(0.01, K3, Loss)),
        ..grouped(A::Gigpo, L::PpoClip, SequenceMean)
    }),
}

/// An advantage over groups of 8, a loss and its normaliser.
fn grouped(advantage: A, loss: L, aggregation: Aggregation) -> AlgorithmSettings {
    AlgorithmSettings {
        group_size: Some(8),
        advantage: Some(advantage.into()),
        loss: Some(loss.into()),
        loss_aggregation: Some(aggregation),
        ..AlgorithmSettings::default()
    }
}

/// A preset without other settings.
#[expect(clippy::unnecessary_wraps, reason = "an entry of the table")]
fn preset(advantage: A, loss: L, aggregation: Aggregation) -> Option<AlgorithmSettings> {
    Some(grouped(advantage, loss, aggregation))
}

/// A preference loss with its default settings.
#[expect(clippy::unnecessary_wraps, reason = "an entry of the table")]
fn preference(kind: P) -> Option<AlgorithmSettings> {
    Some(AlgorithmSettings { preference: Some(kind.into()), ..AlgorithmSettings::default() })
}

/// A distillation with its default settings.
#[expect(clippy::unnecessary_wraps, reason = "an entry of the table")]
fn distillation(kind: D) -> Option<AlgorithmSettings> {
    Some(AlgorithmSettings { distillation: Some(kind.into()), ..AlgorithmSettings::default() })
}

/// The plain policy gradient of tokens or of whole completions: one optimiser step per batch.
fn policy_gradient(advantage: A, level: Level) -> AlgorithmSettings {
    let aggregation = if level == Level::Token { Aggregation::TokenMean } else { Aggregation::SequenceSum };
    AlgorithmSettings {
        loss: Some(LossSettings::from(L::Reinforce).with("level", level)),
        ..grouped(advantage, L::Reinforce, aggregation)
    }
}

fn kl(coef: f64, estimator: KlEstimator, placement: KlPlacement) -> KlSettings {
    KlSettings {
        coef: Some(coef),
        estimator: Some(estimator),
        placement: Some(placement),
        ..KlSettings::default()
    }
}

fn dapo() -> AlgorithmSettings {
    AlgorithmSettings {
        loss: Some(LossSettings::from(L::PpoClip).with("clip_high", 0.28)),
        filter: Some(FilterSettings { dynamic_sampling: Some(true), ..FilterSettings::default() }),
        overlong: Some(OverlongSettings { factor: Some(1.0), ..OverlongSettings::default() }),
        ..grouped(A::Group, L::PpoClip, TokenMean)
    }
}

fn decoupled_ppo() -> AlgorithmSettings {
    AlgorithmSettings {
        proximal: Some(Proximal::Recompute),
        correction: Some(CorrectionSettings {
            level: Some(CorrectionLevel::Token),
            action: Some(WeightAction::Mask),
            low: Some(0.0),
            high: Some(5.0),
            ..CorrectionSettings::default()
        }),
        ..grouped(A::Group, L::PpoClip, TokenMean)
    }
}
