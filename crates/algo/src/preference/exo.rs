use super::kernel::{Completion, Kernel, Term, check_beta, log_sigmoid, of_margin, sigmoid};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Efficient exact optimisation of pairs (arXiv 2402.00856, eq. 16): the reverse KL of the policy's preference to the labels',
    ///
    /// ℓ = σ(βΔ)·[log σ(βΔ) − log(1−ε)] + σ(−βΔ)·[log σ(−βΔ) − log ε].
    Exo {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Probability ε of the rejected completion in the labels, between 0 and 0.5.
        label_smoothing: f64 = 1e-3,
    }
}

impl Kernel for Exo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        let fits = self.label_smoothing > 0.0 && self.label_smoothing < 0.5;
        check("label_smoothing", self.label_smoothing, fits, "between 0 and 0.5", "0.001 is usual")
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        of_margin(unit, terms, |margin| {
            let x = self.beta * margin;
            let (p, q) = (sigmoid(x), sigmoid(-x));
            let of_p = log_sigmoid(x) - (-self.label_smoothing).ln_1p();
            let of_q = log_sigmoid(-x) - self.label_smoothing.ln();
            // The derivatives of the logarithms cancel.
            (p * of_p + q * of_q, self.beta * p * q * (of_p - of_q))
        });
    }
}
