//! What each method is where nothing is overridden: a point in {advantage × loss × correction × KL × aggregation ×
//! filters}, as settings. What a preset does not say is the default of its parts.

use crate::{
    AdvantageKind, Aggregation, AlgorithmSettings, Backbone, CorrectionLevel, CorrectionSettings,
    CriticSettings, FilterSettings, KlEstimator, KlPlacement, KlSettings, Level, LossKind, Method,
    OverlongSettings, PrmSettings, Proximal, WeightAction,
};

/// A group's episodes against each other, PPO's clip, and a mean over tokens.
fn grouped(advantage: AdvantageKind, loss: LossKind, aggregation: Aggregation) -> AlgorithmSettings {
    AlgorithmSettings {
        group_size: Some(8),
        advantage: Some(advantage),
        loss: Some(loss),
        loss_aggregation: Some(aggregation),
        ..AlgorithmSettings::default()
    }
}

/// The plain policy gradient of whole completions: one optimiser step per batch.
fn policy_gradient(advantage: AdvantageKind, level: Level) -> AlgorithmSettings {
    let aggregation = if level == Level::Token { Aggregation::TokenMean } else { Aggregation::SequenceSum };
    AlgorithmSettings { level: Some(level), ..grouped(advantage, LossKind::Reinforce, aggregation) }
}

fn kl(coef: f64, estimator: KlEstimator, placement: KlPlacement) -> KlSettings {
    KlSettings {
        coef: Some(coef),
        estimator: Some(estimator),
        placement: Some(placement),
        ..KlSettings::default()
    }
}

/// The preset of a method; `None` for supervised methods, which have no advantage.
pub(crate) fn preset(method: Method) -> Option<AlgorithmSettings> {
    use AdvantageKind as A;
    use Aggregation::{ConstantLength, SequenceMean, TokenMean};
    use KlEstimator::{K1, K2, K3};
    use KlPlacement::{Loss, Reward};
    use LossKind as L;
    Some(match method {
        Method::Sft => return None,
        Method::Grpo => grouped(A::Group, L::PpoClip, SequenceMean),
        Method::DrGrpo => grouped(A::GroupMean, L::PpoClip, ConstantLength),
        Method::Dapo => AlgorithmSettings {
            clip_high: Some(0.28),
            filter: Some(FilterSettings { dynamic_sampling: Some(true), ..FilterSettings::default() }),
            overlong: Some(OverlongSettings { factor: Some(1.0), ..OverlongSettings::default() }),
            ..grouped(A::Group, L::PpoClip, TokenMean)
        },
        Method::Gspo => grouped(A::Group, L::Gspo, SequenceMean),
        Method::GspoToken => grouped(A::Group, L::GspoToken, SequenceMean),
        Method::Gmpo => grouped(A::Group, L::Gmpo, SequenceMean),
        Method::Cispo => grouped(A::Group, L::Cispo, TokenMean),
        Method::Sapo => grouped(A::Group, L::Sapo, SequenceMean),
        Method::ClipCov => grouped(A::Group, L::ClipCov, TokenMean),
        Method::KlCov => grouped(A::Group, L::KlCov, TokenMean),
        Method::Gdpo => grouped(A::Gdpo, L::PpoClip, SequenceMean),
        Method::Rloo => AlgorithmSettings {
            group_size: Some(4),
            kl: Some(kl(0.05, K1, Reward)),
            ..policy_gradient(A::Rloo, Level::Sequence)
        },
        Method::ReinforcePp => AlgorithmSettings {
            group_size: Some(1),
            kl: Some(kl(0.01, K1, Reward)),
            ..grouped(A::ReinforcePp, L::PpoClip, TokenMean)
        },
        Method::ReinforcePpBaseline => AlgorithmSettings {
            kl: Some(kl(1e-4, K2, Loss)),
            ..grouped(A::ReinforcePpBaseline, L::PpoClip, TokenMean)
        },
        Method::Opo => policy_gradient(A::Opo, Level::Sequence),
        Method::Gpg => policy_gradient(A::Gpg, Level::Token),
        Method::Remax => {
            AlgorithmSettings { group_size: Some(1), ..policy_gradient(A::Remax, Level::Sequence) }
        }
        Method::RaftPp => grouped(A::RaftPp, L::PpoClip, SequenceMean),
        Method::Topr => {
            AlgorithmSettings { level: Some(Level::Sequence), ..grouped(A::Topr, L::Topr, TokenMean) }
        }
        Method::MaxAtG => policy_gradient(A::MaxAtG, Level::Sequence),
        Method::Ppo => AlgorithmSettings {
            group_size: Some(1),
            kl: Some(KlSettings { coef: Some(0.0), placement: Some(Reward), ..KlSettings::default() }),
            critic: Some(CriticSettings { backbone: Some(Backbone::Own), ..CriticSettings::default() }),
            ..grouped(A::Gae, L::PpoClip, TokenMean)
        },
        Method::DecoupledPpo => AlgorithmSettings {
            proximal: Some(Proximal::Recompute),
            correction: Some(CorrectionSettings {
                level: Some(CorrectionLevel::Token),
                action: Some(WeightAction::Mask),
                low: Some(0.0),
                high: Some(5.0),
                ..CorrectionSettings::default()
            }),
            ..grouped(A::Group, L::PpoClip, TokenMean)
        },
        Method::DppoTv => grouped(A::Group, L::DppoTv, TokenMean),
        Method::DppoKl => grouped(A::Group, L::DppoKl, TokenMean),
        Method::Prime => AlgorithmSettings {
            prm: Some(PrmSettings { beta: Some(0.05), learning_rate_scale: Some(2.0) }),
            ..grouped(A::Prime, L::PpoClip, TokenMean)
        },
        Method::Gigpo => {
            AlgorithmSettings { kl: Some(kl(0.01, K3, Loss)), ..grouped(A::Gigpo, L::PpoClip, SequenceMean) }
        }
    })
}
