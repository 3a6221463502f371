use serde::{Deserialize, Serialize};

use super::kernel::{Clipped, Kernel, Reads, Row, TokenTerm, each, ratio};

/// Soft adaptive policy optimisation (arXiv 2511.20347), per token: ℓ = −A·(4/τ)·σ(τ(ρ − 1)), ρ = exp(lp − old). At
/// ρ = 1 its gradient is the policy gradient's; away from it a sigmoid fades it out where others clip.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sapo {
    /// τ where A > 0.
    pub tau_positive: f64,
    /// τ where A < 0: larger, so that what is pushed down fades sooner.
    pub tau_negative: f64,
}

impl Kernel for Sapo {
    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn scales_with_advantage(&self) -> bool {
        true
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
