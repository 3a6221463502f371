use super::dppo::{TrustRegion, check_region};
use super::kernel::{Bounds, Kernel, Reads, Row, TokenTerm};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// DPPO with a trust region of binary KL (arXiv 2602.04879).
    DppoKl {
        /// δ: bound on the change of a token's probability in the advantage's direction, as binary KL.
        divergence_limit: f64 = 0.05,
        /// Upper bound of the importance weight, which is held constant.
        weight_cap: f64 = 20.0,
    }
}

/// KL(Bernoulli(p_beh) ‖ Bernoulli(p)).
fn divergence(lp: f64, behavior: f64) -> f64 {
    let q = behavior.exp();
    // log(1 − e^x) by expm1: probabilities near 1 keep their digits.
    let log_other = |x: f64| (-x.min(0.0).exp_m1()).ln();
    let others = if q < 1.0 { (1.0 - q) * (log_other(behavior) - log_other(lp)) } else { 0.0 };
    q * (behavior - lp) + others
}

impl Kernel for DppoKl {
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
