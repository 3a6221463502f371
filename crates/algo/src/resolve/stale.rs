//! What each loss does by default about samples of an older policy (`max_staleness` > 0).
//!
//! One rule: the policy gradient of a sample is weighed by what the policy makes of it against what its sampler made of
//! it, once. Where the loss's own ratio can carry that it is taken to the sampler; where the loss needs its ratio for
//! something else, the rest of the way from the proximal policy to the sampler is a weight of its own.

use crate::{Level, RatioTo, Reinforce, Surrogate, WeightAction, WeightLevel};

/// A weight where the recipe says nothing of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct DefaultWeight {
    pub(super) level: WeightLevel,
    pub(super) action: WeightAction,
}

impl DefaultWeight {
    /// Decoupled PPO's (arXiv 2505.24298): what is far above 1 is an accident of a token that the sampler found all but
    /// impossible, and goes.
    fn mask(level: WeightLevel) -> Self {
        Self { level, action: WeightAction::Mask }
    }
}

/// What the loss's ratio is taken to.
///
/// CISPO's ratio is nothing but a capped weight, held constant: it is the importance weight. Every other ratio bounds how
/// far the policy may move from where the batch began, which a ratio to the sampler would have used up before the first
/// step.
pub(super) fn ratio_to(surrogate: &Surrogate, has_weight: bool) -> RatioTo {
    match surrogate {
        Surrogate::Cispo(_) if !has_weight => RatioTo::Behavior,
        _ => RatioTo::Old,
    }
}

/// The weight that the loss gets beside its ratio; `None` where that is taken to the sampler.
pub(super) fn weight(surrogate: &Surrogate, ratio_to: RatioTo) -> Option<DefaultWeight> {
    if surrogate.reads_old() && ratio_to == RatioTo::Behavior {
        return None;
    }
    match surrogate {
        // A clip or a gate around the proximal policy, by token. KL-Cov's bound is its penalty on |lp − old|, which is a
        // mean over the proximal policy's tokens as the rest of the term is, and is weighed with it.
        Surrogate::PpoClip(_)
        | Surrogate::ClipCov(_)
        | Surrogate::KlCov(_)
        | Surrogate::Sapo(_)
        | Surrogate::Cispo(_) => Some(DefaultWeight::mask(WeightLevel::Token)),
        // The ratio is a mean over the sequence in log space, and so is the weight: their product is the same ratio to the
        // sampler. GSPO-token has the ratio of its sequence at every token.
        Surrogate::Gspo(_) | Surrogate::Gmpo(_) => Some(DefaultWeight::mask(WeightLevel::Geometric)),
        // No ratio at all: one optimiser step per batch, and the weight exp(lp − beh) of what is one action. It is
        // truncated, not masked: without a clip nothing else holds a large one, and masking would lose whole sequences.
        Surrogate::Reinforce(Reinforce { level }) => Some(DefaultWeight {
            level: match level {
                Level::Token => WeightLevel::Token,
                Level::Sequence => WeightLevel::Sequence,
            },
            action: WeightAction::Clamp,
        }),
        // The first two are made for old samples: their weight is to the sampler already. The others are not the policy's,
        // or have no samples.
        Surrogate::Topr(_) | Surrogate::Dppo(_) | Surrogate::ImplicitReward(_) | Surrogate::Sft(_) => None,
    }
}
