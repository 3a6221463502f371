use serde::{Deserialize, Serialize};

use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, TokenTerm, each, ratio};

/// CISPO (arXiv 2506.13585), per token: ℓ = −w·A·lp with the weight w = sg(clip(ρ, floor, cap)), ρ = exp(lp − old): no
/// token loses its gradient, only its weight is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cispo {
    /// Upper bound of the weight, > 0.
    pub cap: f64,
    /// Lower bound of the weight, from 0 (none) to the cap.
    pub floor: f64,
}

impl Kernel for Cispo {
    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        Bounds::BOTH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (ratio, _) = ratio(row.log_ratio(t));
            let (weight, clipped) = if ratio > self.cap {
                (self.cap, Clipped::High)
            } else if ratio < self.floor {
                (self.floor, Clipped::Low)
            } else {
                (ratio, Clipped::No)
            };
            let wa = weight * row.advantage[t];
            TokenTerm { value: -wa * row.lp[t], d_logprob: -wa, clipped }
        });
    }
}
