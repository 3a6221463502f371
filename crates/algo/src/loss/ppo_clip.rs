use serde::{Deserialize, Serialize};

use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, TokenTerm, each, ratio};

/// PPO's clipped surrogate (arXiv 1707.06347, eq. 7), per token:
///
/// ℓ = max(−ρA, −clip(ρ, 1 − ε_low, 1 + ε_high)·A), ρ = exp(lp − old).
///
/// ε_high > ε_low is DAPO's clip-higher (arXiv 2503.14476). With a dual clip c (arXiv 1912.09729), ℓ = min(ℓ, −cA)
/// where A < 0. Where a constant branch is active the gradient is zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PpoClip {
    /// ε_low, in (0, 1).
    pub clip_low: f64,
    /// ε_high, > 0.
    pub clip_high: f64,
    /// c > 1; `None` for none.
    pub dual_clip: Option<f64>,
}

impl PpoClip {
    pub(super) fn term(&self, log_ratio: f64, a: f64) -> TokenTerm {
        let (ratio, slope) = ratio(log_ratio);
        let constant = |bound: f64, clipped| TokenTerm { value: -bound * a, d_logprob: 0.0, clipped };
        if a > 0.0 && ratio > 1.0 + self.clip_high {
            return constant(1.0 + self.clip_high, Clipped::High);
        }
        if a < 0.0 && ratio < 1.0 - self.clip_low {
            return constant(1.0 - self.clip_low, Clipped::Low);
        }
        if let Some(c) = self.dual_clip.filter(|&c| a < 0.0 && ratio > c) {
            return constant(c, Clipped::Dual);
        }
        TokenTerm { value: -ratio * a, d_logprob: -slope * a, clipped: Clipped::No }
    }
}

impl Kernel for PpoClip {
    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        Bounds { dual: self.dual_clip.is_some(), ..Bounds::BOTH }
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| self.term(row.log_ratio(t), row.advantage[t]));
    }
}
