use super::kernel::{Clipped, Kernel, Reads, Row, StaleWeight, TokenTerm, each, ratio};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Soft adaptive policy optimisation (arXiv 2511.20347), per token: ℓ = −A·(4/τ)·σ(τ(ρ − 1)), ρ = exp(lp − old). At
    /// ρ = 1 its gradient is the policy gradient's; away from it a sigmoid attenuates the gradient instead of a clip.
    Sapo {
        /// τ for A > 0.
        tau_positive: f64 = 1.0,
        /// τ for A < 0; larger, so that the gradient decays sooner.
        tau_negative: f64 = 1.05,
    }
}

impl Kernel for Sapo {
    fn check(&self) -> Result<(), OutOfRange> {
        let hint = "1.0 for A > 0 and 1.05 for A < 0 are the paper's";
        check("tau_positive", self.tau_positive, self.tau_positive > 0.0, "above 0", hint)?;
        check("tau_negative", self.tau_negative, self.tau_negative > 0.0, "above 0", hint)
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::TOKEN)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let a = row.advantage[t];
            let tau = if a > 0.0 { self.tau_positive } else { self.tau_negative };
            let (ratio, slope) = ratio(row.log_ratio(t));
            let gate = sigmoid(tau * (ratio - 1.0));
            TokenTerm {
                value: -a * 4.0 / tau * gate,
                d_logprob: -a * 4.0 * gate * (1.0 - gate) * slope,
                clipped: Clipped::No,
            }
        });
    }
}

/// 1/(1 + e^−x), without overflow.
pub(super) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}
