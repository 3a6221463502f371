//! Policy optimisation inside a divergence's trust region (arXiv 2602.04879), shared by `dppo_tv` and `dppo_kl`.

use super::kernel::{Clipped, Row, TokenTerm, each, ratio};
use crate::settings::keys::{OutOfRange, check};

/// ℓ = −keep·sg(min(exp(lp − beh), cap))·A·lp per token. A token is dropped once its probability has changed
/// in the advantage's direction by a divergence above the limit.
pub(super) struct TrustRegion<D> {
    /// Divergence of lp from the sampler's log-probability.
    pub(super) divergence: D,
    /// δ.
    pub(super) limit: f64,
    /// Upper bound of the importance weight.
    pub(super) cap: f64,
}

impl<D: Fn(f64, f64) -> f64> TrustRegion<D> {
    pub(super) fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (lp, behavior, a) = (row.lp[t], row.behavior[t], row.advantage[t]);
            let moved_along = (lp - behavior) * a > 0.0;
            if moved_along && (self.divergence)(lp, behavior) > self.limit {
                let clipped = if a > 0.0 { Clipped::High } else { Clipped::Low };
                return TokenTerm { value: 0.0, d_logprob: 0.0, clipped };
            }
            let wa = ratio(lp - behavior).0.min(self.cap) * a;
            TokenTerm { value: -wa * lp, d_logprob: -wa, clipped: Clipped::No }
        });
    }
}

pub(super) fn check_region(limit: f64, cap: f64) -> Result<(), OutOfRange> {
    let hint = "0.2 is usual for total variation, 0.05 for binary KL";
    check("divergence_limit", limit, limit > 0.0, "above 0", hint)?;
    check("weight_cap", cap, cap > 0.0, "above 0", "20 is usual")
}
