use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, sigmoid};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Anchored preference optimisation that lowers both completions, the rejected one more (arXiv 2408.06266, eq. 8):
    /// ℓ = σ(βd_c) + 1 − σ(βΔ).
    ApoDown {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for ApoDown {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let c = self.beta * chosen.log_ratio();
            let margin = c - self.beta * rejected.log_ratio();
            let slope = |x: f64| self.beta * sigmoid(x) * sigmoid(-x);
            (sigmoid(c) + sigmoid(-margin), slope(c) - slope(margin), slope(margin))
        });
    }
}
