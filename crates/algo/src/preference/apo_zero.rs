use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, sigmoid};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Anchored preference optimisation that raises the chosen and lowers the rejected completion (arXiv 2408.06266, eq. 7):
    /// ℓ = 1 − σ(βd_c) + σ(βd_r).
    ApoZero {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for ApoZero {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let (c, r) = (self.beta * chosen.log_ratio(), self.beta * rejected.log_ratio());
            let slope = |x: f64| self.beta * sigmoid(x) * sigmoid(-x);
            (sigmoid(-c) + sigmoid(r), -slope(c), slope(r))
        });
    }
}
