use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, log_sigmoid, sigmoid};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Noise contrastive alignment of pairs (arXiv 2402.05369): ℓ = −log σ(βd_c) − ½·log σ(−βd_c) − ½·log σ(−βd_r).
    Nca {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for Nca {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let (c, r) = (self.beta * chosen.log_ratio(), self.beta * rejected.log_ratio());
            let value = -log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r);
            (value, self.beta * (0.5 * sigmoid(c) - sigmoid(-c)), self.beta * 0.5 * sigmoid(r))
        });
    }
}
