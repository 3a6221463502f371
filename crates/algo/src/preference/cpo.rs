use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, smoothed};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Contrastive preference optimisation (arXiv 2401.08417, eq. 5): ℓ = −log σ(β(Σ lp_c − Σ lp_r)) − α·Σ lp_c. There is no
    /// reference.
    Cpo {
        /// Scale β of the implicit reward β·Σ lp.
        beta: f64 = 0.1,
        /// Weight α of the likelihood of the chosen completion.
        nll_weight: f64 = 1.0,
    }
}

impl Kernel for Cpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check("nll_weight", self.nll_weight, self.nll_weight >= 0.0, "0 or more", "1 is usual")
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn reward(&self, completion: &Completion) -> f64 {
        self.beta * completion.lp
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let (value, slope) = smoothed(self.beta * (chosen.lp - rejected.lp), 0.0);
            let value = value - self.nll_weight * chosen.lp;
            (value, self.beta * slope - self.nll_weight, -self.beta * slope)
        });
    }
}
