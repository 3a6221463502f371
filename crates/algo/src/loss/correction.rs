use serde::{Deserialize, Serialize};

use super::kernel::Row;
use crate::kl::ratio;
use crate::{KlEstimator, RejectLevel, WeightAction, WeightLevel, unbounded};

/// Correction for a sampler that is not the proximal policy: an importance weight, rejection, or both. They apply to
/// the surrogate alone, never to KL, entropy or value; masked and rejected tokens stay in the normaliser's count.
///
/// Both compare the proximal policy with the sampler, whatever the surrogate's own ratio is taken to. So they are the
/// same in all optimiser steps of a batch: they correct for the sampler, and the surrogate bounds how far training moves
/// from there. A surrogate without a ratio takes one step per batch, and the scores of that step are the proximal
/// policy's: no earlier pass is needed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Correction {
    /// The weight; `None` for 1.
    pub weight: Option<ImportanceWeight>,
    /// `None` rejects nothing.
    pub rejection: Option<Rejection>,
}

/// sg(π_old/β), bounded: truncated importance sampling, or IcePop's mask.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ImportanceWeight {
    /// Unit over which it is multiplied.
    pub level: WeightLevel,
    /// Treatment of a weight outside its bounds.
    pub action: WeightAction,
    /// Lower bound, 0 for none.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Tokens or sequences whose divergence KL(sampler ‖ proximal) lies outside its bounds have no part in the surrogate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// The estimate: k1 = beh − old, k2 = ½(beh − old)², k3 = exp(old − beh) − (old − beh) − 1.
    pub estimator: KlEstimator,
    /// Unit that is rejected together.
    pub level: RejectLevel,
    /// Smallest divergence that stays; −∞ for no bound.
    #[serde(with = "unbounded::low")]
    pub low: f64,
    /// Largest divergence that stays.
    pub high: f64,
}

/// A token's part in the surrogate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Weight {
    /// Factor of value and coefficient.
    pub(super) value: f64,
    /// True if the importance weight is out of its bounds and masked: then it is 0.
    pub(super) is_masked: bool,
    /// True if the divergence is out of its bounds: then the weight is 0.
    pub(super) is_rejected: bool,
}

impl Correction {
    pub(crate) fn is_some(&self) -> bool {
        self.weight.is_some() || self.rejection.is_some()
    }

    /// True if it differs between the tokens of a sequence.
    pub(super) fn is_by_token(&self) -> bool {
        self.weight.is_some_and(|w| w.level == WeightLevel::Token)
            || self.rejection.is_some_and(|r| r.level == RejectLevel::Token)
    }

    /// The weight of each token of a row.
    pub(super) fn weigh(&self, row: &Row<'_>, weights: &mut Vec<Weight>) {
        weights.clear();
        weights.resize(row.len(), Weight { value: 1.0, is_masked: false, is_rejected: false });
        if let Some(weight) = &self.weight {
            weight.weigh(row, weights);
        }
        if let Some(rejection) = &self.rejection {
            rejection.reject(row, weights);
        }
    }
}

impl ImportanceWeight {
    fn weigh(&self, row: &Row<'_>, weights: &mut [Weight]) {
        let of_token = |t: usize| row.proximal[t] - row.behavior[t];
        let sum = || (0..row.len()).map(of_token).sum::<f64>();
        let of_row = match self.level {
            WeightLevel::Token => None,
            WeightLevel::Sequence => Some(sum()),
            WeightLevel::Geometric => Some(sum() / row.len() as f64),
        };
        for (t, out) in weights.iter_mut().enumerate() {
            let (weight, _) = ratio(of_row.unwrap_or_else(|| of_token(t)));
            let is_outside = weight < self.low || weight > self.high;
            out.value = match self.action {
                WeightAction::Clamp => weight.max(self.low).min(self.high),
                WeightAction::Mask if is_outside => 0.0,
                WeightAction::Mask => weight,
            };
            out.is_masked = is_outside && self.action == WeightAction::Mask;
        }
    }
}

impl Rejection {
    fn is_outside(&self, divergence: f64) -> bool {
        divergence < self.low || divergence > self.high
    }

    fn reject(&self, row: &Row<'_>, weights: &mut [Weight]) {
        // The tokens are the sampler's, so the estimate of KL(sampler ‖ proximal) has the sampler in the policy's place.
        let of_token = |t: usize| self.estimator.value_and_gradient(row.behavior[t], row.proximal[t]).0;
        let n = row.len();
        let of_row = match self.level {
            RejectLevel::Token => None,
            RejectLevel::SequenceMean => Some(self.is_outside((0..n).map(of_token).sum::<f64>() / n as f64)),
            RejectLevel::SequenceMax => {
                Some(self.is_outside((0..n).map(of_token).fold(f64::NEG_INFINITY, f64::max)))
            }
        };
        for (t, out) in weights.iter_mut().enumerate() {
            out.is_rejected = of_row.unwrap_or_else(|| self.is_outside(of_token(t)));
            if out.is_rejected {
                out.value = 0.0;
            }
        }
    }
}
