use serde::{Deserialize, Serialize};

use super::kernel::Row;
use crate::kl::ratio;
use crate::{KlEstimator, RejectLevel, WeightAction, WeightLevel, unbounded};

/// Correction for a sampler that is not the proximal policy: an importance weight, rejection, or both. They apply
/// only to the surrogate, not to KL, entropy or value; masked and rejected tokens still count in the normaliser.
///
/// Both compare the proximal policy with the sampler, independent of the surrogate's own ratio. They are therefore the
/// same in all optimiser steps of a batch: they correct for the sampler, while the surrogate bounds the change from the
/// proximal policy. A surrogate without a ratio takes one step per batch, whose scores are those of the proximal
/// policy, so no extra pass is needed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Correction {
    /// Importance weight; `None` for none.
    pub weight: Option<ImportanceWeight>,
    /// Rejection of tokens or sequences; `None` for none.
    pub rejection: Option<Rejection>,
}

/// Importance weight sg(π_old/β), clamped (truncated importance sampling) or masked (IcePop).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ImportanceWeight {
    /// Unit of the weight: a token, a sequence, or the geometric mean of a sequence.
    pub level: WeightLevel,
    /// Treatment of a weight outside its bounds.
    pub action: WeightAction,
    /// Lower bound, 0 for none.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Rejection of tokens or sequences whose divergence KL(sampler ‖ proximal) is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// Estimator of the divergence: k1 = beh − old, k2 = ½(beh − old)², k3 = exp(old − beh) − (old − beh) − 1.
    pub estimator: KlEstimator,
    /// Unit that is rejected together.
    pub level: RejectLevel,
    /// Smallest divergence that is not rejected; −∞ for no bound.
    #[serde(with = "unbounded::low")]
    pub low: f64,
    /// Largest divergence that is not rejected.
    pub high: f64,
}

/// Weight of a token in the surrogate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Weight {
    /// Factor of value and coefficient.
    pub(super) value: f64,
    /// True if the importance weight is out of bounds and therefore masked to 0.
    pub(super) is_masked: bool,
    /// True if the divergence is out of bounds; the weight is then 0.
    pub(super) is_rejected: bool,
}

impl Correction {
    pub(crate) fn is_some(&self) -> bool {
        self.weight.is_some() || self.rejection.is_some()
    }

    /// True if the weight can differ between the tokens of a sequence.
    pub(super) fn is_by_token(&self) -> bool {
        self.weight.is_some_and(|w| w.level == WeightLevel::Token)
            || self.rejection.is_some_and(|r| r.level == RejectLevel::Token)
    }

    /// Computes the weight of each token of a row.
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
        // The tokens are the sampler's, so the estimator of KL(sampler ‖ proximal) takes the sampler as the policy.
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
