use super::kernel::{Completion, Kernel, Term, check_beta, of_margin, smoothed};
use super::robust::check_smoothing;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Conservative DPO (Mitchell 2023, in arXiv 2305.18290's notation): ℓ = −(1−ε)·log σ(βΔ) − ε·log σ(−βΔ), for labels that are
    /// wrong with probability ε.
    Cdpo {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Probability ε that a label is wrong, from 0 to below 0.5.
        label_smoothing: f64 = 0.1,
    }
}

impl Kernel for Cdpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check_smoothing(self.label_smoothing)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        of_margin(unit, terms, |margin| {
            let (value, slope) = smoothed(self.beta * margin, self.label_smoothing);
            (value, self.beta * slope)
        });
    }
}
