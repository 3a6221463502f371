use super::dppo::{TrustRegion, check_region};
use super::kernel::{Bounds, Kernel, Reads, Row, TokenTerm};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// DPPO with a trust region of total variation (arXiv 2602.04879).
    DppoTv {
        /// δ: bound on the change of a token's probability in the advantage's direction, as total variation.
        divergence_limit: f64 = 0.2,
        /// Upper bound of the importance weight, which is held constant.
        weight_cap: f64 = 20.0,
    }
}

/// |p − p_beh|: total variation of the binary distribution "this token or another".
fn divergence(lp: f64, behavior: f64) -> f64 {
    (lp.exp() - behavior.exp()).abs()
}

impl Kernel for DppoTv {
    fn check(&self) -> Result<(), OutOfRange> {
        check_region(self.divergence_limit, self.weight_cap)
    }

    fn reads(&self) -> Reads {
        Reads::BEHAVIOR
    }

    fn bounds(&self) -> Bounds {
        Bounds::BOTH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn idle_on_policy(&self) -> &'static [&'static str] {
        if self.weight_cap >= 1.0 { &["divergence_limit", "weight_cap"] } else { &["divergence_limit"] }
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        TrustRegion { divergence, limit: self.divergence_limit, cap: self.weight_cap }.row(row, terms);
    }
}
