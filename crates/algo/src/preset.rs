//! What each method is where nothing is overridden.

use crate::{AdvantageKind, Aggregation, KlEstimator, KlPlacement, Level, LossKind, Method};

/// A point in {advantage × loss × KL × aggregation}, with the knobs of its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preset {
    pub(crate) group_size: u32,
    pub(crate) advantage: AdvantageKind,
    pub(crate) loss: LossKind,
    pub(crate) level: Level,
    pub(crate) clip: f64,
    pub(crate) aggregation: Aggregation,
    pub(crate) kl_coef: f64,
    pub(crate) kl_estimator: KlEstimator,
    pub(crate) kl_placement: KlPlacement,
}

/// ε of the group's standard deviation.
pub(crate) const STD_EPSILON: f64 = 1e-4;
/// Discount per policy token: none.
pub(crate) const GAMMA: f64 = 1.0;

const GRPO: Preset = Preset {
    group_size: 8,
    advantage: AdvantageKind::Group,
    loss: LossKind::PpoClip,
    level: Level::Token,
    clip: 0.2,
    aggregation: Aggregation::SequenceMean,
    kl_coef: 0.0,
    kl_estimator: KlEstimator::K3,
    kl_placement: KlPlacement::Loss,
};

/// The preset of a method; `None` for supervised methods, which have no advantage.
pub(crate) fn preset(method: Method) -> Option<Preset> {
    Some(match method {
        Method::Sft => return None,
        Method::Grpo => GRPO,
        Method::DrGrpo => {
            Preset { advantage: AdvantageKind::GroupMean, aggregation: Aggregation::ConstantLength, ..GRPO }
        }
        Method::Rloo => Preset {
            group_size: 4,
            advantage: AdvantageKind::Rloo,
            loss: LossKind::Reinforce,
            level: Level::Sequence,
            aggregation: Aggregation::SequenceSum,
            kl_coef: 0.05,
            kl_estimator: KlEstimator::K1,
            kl_placement: KlPlacement::Reward,
            ..GRPO
        },
        Method::ReinforcePp => Preset {
            group_size: 1,
            advantage: AdvantageKind::ReinforcePp,
            aggregation: Aggregation::TokenMean,
            kl_coef: 0.01,
            kl_estimator: KlEstimator::K1,
            kl_placement: KlPlacement::Reward,
            ..GRPO
        },
        Method::ReinforcePpBaseline => Preset {
            advantage: AdvantageKind::ReinforcePpBaseline,
            aggregation: Aggregation::TokenMean,
            kl_coef: 1e-4,
            kl_estimator: KlEstimator::K2,
            kl_placement: KlPlacement::Loss,
            ..GRPO
        },
    })
}
