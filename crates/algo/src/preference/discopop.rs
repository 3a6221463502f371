use super::kernel::{Completion, Kernel, Term, check_beta, log_sigmoid, of_margin, sigmoid};
use crate::kl::LOG_RATIO_LIMIT;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// The loss that DiscoPOP discovered (arXiv 2406.08414, eq. 5): with m = σ(βΔ/τ),
    /// ℓ = (1−m)·(−log σ(βΔ)) + m·exp(−βΔ).
    Discopop {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Temperature τ of the blend of both losses.
        temperature: f64 = 0.05,
    }
}

impl Kernel for Discopop {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check("temperature", self.temperature, self.temperature > 0.0, "above 0", "0.05 is usual")
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        of_margin(unit, terms, |margin| {
            let x = self.beta * margin;
            let (m, rest) = (sigmoid(x / self.temperature), sigmoid(-x / self.temperature));
            let (logistic, exponential) = (-log_sigmoid(x), (-x).min(LOG_RATIO_LIMIT).exp());
            let blend = m * rest / self.temperature * (exponential - logistic);
            (rest * logistic + m * exponential, self.beta * (blend - rest * sigmoid(-x) - m * exponential))
        });
    }
}
