use super::kernel::{Completion, Kernel, Term, check_beta, of_margin};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// The hinge of SLiC-HF on the log-ratios (arXiv 2305.10425, as in arXiv 2309.06657): ℓ = max(0, 1 − βΔ).
    Hinge {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for Hinge {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        of_margin(unit, terms, |margin| {
            let value = 1.0 - self.beta * margin;
            if value > 0.0 { (value, -self.beta) } else { (0.0, 0.0) }
        });
    }
}
