use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, smoothed};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Simple preference optimisation (arXiv 2405.14734, eq. 6): ℓ = −log σ(β(p_c − p_r) − γ) with the mean log-probability p. There is
    /// no reference.
    Simpo {
        /// Scale β of the implicit reward β·p.
        beta: f64 = 2.0,
        /// Margin γ between the rewards of a pair.
        gamma: f64 = 1.0,
    }
}

impl Kernel for Simpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check("gamma", self.gamma, self.gamma >= 0.0, "0 or more", "half of beta is usual")
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn reward(&self, completion: &Completion) -> f64 {
        self.beta * completion.mean()
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let margin = self.beta * (chosen.mean() - rejected.mean()) - self.gamma;
            let (value, slope) = smoothed(margin, 0.0);
            (value, self.beta * slope / chosen.tokens, -self.beta * slope / rejected.tokens)
        });
    }
}
