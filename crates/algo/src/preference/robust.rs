use super::kernel::{Completion, Kernel, Term, check_beta, log_sigmoid, of_margin, sigmoid};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Robust DPO (arXiv 2403.00409): ℓ = [−(1−ε)·log σ(βΔ) + ε·log σ(−βΔ)]/(1−2ε), whose mean over labels that are wrong with
    /// probability ε is DPO's loss of the right labels.
    Robust {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Probability ε that a label is wrong, from 0 to below 0.5.
        label_smoothing: f64 = 0.1,
    }
}

impl Kernel for Robust {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check_smoothing(self.label_smoothing)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        let epsilon = self.label_smoothing;
        of_margin(unit, terms, |margin| {
            let x = self.beta * margin;
            let value = -(1.0 - epsilon) * log_sigmoid(x) + epsilon * log_sigmoid(-x);
            let slope = -(1.0 - epsilon) * sigmoid(-x) - epsilon * sigmoid(x);
            let scale = 1.0 - 2.0 * epsilon;
            (value / scale, self.beta * slope / scale)
        });
    }
}

/// Checks the probability of a wrong label.
pub(super) fn check_smoothing(epsilon: f64) -> Result<(), OutOfRange> {
    let fits = (0.0..0.5).contains(&epsilon);
    check("label_smoothing", epsilon, fits, "from 0 to below 0.5", "0.1 is usual")
}
