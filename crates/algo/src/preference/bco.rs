use super::kernel::{Anchor, Completion, Kernel, Term, Unit, check_beta, smoothed};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Binary classifier optimisation (arXiv 2404.04656): ℓ = −log σ(βd − δ) for a desirable completion and −log σ(−(βd − δ)) for an
    /// undesirable one, with δ as in [`Anchor::Running`](crate::Anchor::Running), held constant. The paper's weights for different
    /// prompts of both kinds are not included.
    Bco {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
    }
}

impl Kernel for Bco {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn unit(&self) -> Unit {
        Unit::Completion
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(Anchor::Running)
    }

    fn terms(&self, unit: &[Completion], anchor: f64, terms: &mut [Term]) {
        for (completion, term) in unit.iter().zip(terms) {
            let sign = if completion.is_desirable { 1.0 } else { -1.0 };
            let (value, slope) = smoothed(sign * (self.beta * completion.log_ratio() - anchor), 0.0);
            *term = Term { value, slope: sign * self.beta * slope };
        }
    }
}
