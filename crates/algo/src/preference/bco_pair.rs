use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, smoothed};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Binary classifier optimisation on a pair, without the shift δ: ℓ = −log σ(βd_c) − log σ(−βd_r), the quality loss of MPO as TRL
    /// has it.
    BcoPair {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for BcoPair {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let (of_chosen, up) = smoothed(self.beta * chosen.log_ratio(), 0.0);
            let (of_rejected, down) = smoothed(-self.beta * rejected.log_ratio(), 0.0);
            (of_chosen + of_rejected, self.beta * up, -self.beta * down)
        });
    }
}
