use super::kernel::{Completion, Kernel, Term, check_beta, each_pair};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Self-play preference optimisation with certain preferences (arXiv 2405.00675, eq. 4.7 with P of 1 and 0):
    /// ℓ = (d_c − 1/(2β))² + (d_r + 1/(2β))², where 1/β is the paper's η.
    Sppo {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for Sppo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let target = 1.0 / (2.0 * self.beta);
            let (c, r) = (chosen.log_ratio() - target, rejected.log_ratio() + target);
            (c * c + r * r, 2.0 * c, 2.0 * r)
        });
    }
}
