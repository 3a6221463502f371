use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, smoothed};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Weighted preference optimisation (arXiv 2406.11827, eq. 2 and section 3): ℓ = w_c·w_r·(−log σ(β·Δ)), where the weight of a
    /// completion, log w = mean (lp − log Σ p²) over its tokens, tells how near it is to what the policy samples. Weights have no
    /// gradient.
    Wpo {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for Wpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn reads_sharpened(&self) -> bool {
        true
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        // With p′ ∝ p² at half the temperature, log p′ = 2·lp − log Σ p².
        let log_weight = |completion: &Completion| (completion.sharpened - completion.lp) / completion.tokens;
        each_pair(unit, terms, |chosen, rejected| {
            let weight = (log_weight(chosen) + log_weight(rejected)).exp();
            let (value, slope) = smoothed(self.beta * (chosen.log_ratio() - rejected.log_ratio()), 0.0);
            let slope = weight * self.beta * slope;
            (weight * value, slope, -slope)
        });
    }
}
