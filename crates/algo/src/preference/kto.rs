use super::kernel::{Anchor, Completion, Kernel, Term, Unit, check_beta, sigmoid};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Kahneman-Tversky optimisation (arXiv 2402.01306, eq. 8): ℓ = w_d·(1 − σ(β(d − z))) for a desirable completion and
    /// w_u·(1 − σ(β(z − d))) for an undesirable one, with z as in [`Anchor::Mismatched`](crate::Anchor::Mismatched), held constant.
    ///
    /// Without `anchor` z is 0: the unpaired form of APO-zero.
    Kto {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Weight w_d of desirable completions.
        desirable_weight: f64 = 1.0,
        /// Weight w_u of undesirable completions.
        undesirable_weight: f64 = 1.0,
        /// Compares with z, the divergence on completions of other prompts, which are scored in each optimiser step.
        anchor: bool = true,
    }
}

impl Kernel for Kto {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        for (key, weight) in
            [("desirable_weight", self.desirable_weight), ("undesirable_weight", self.undesirable_weight)]
        {
            check(key, weight, weight > 0.0, "above 0", "1 is usual")?;
        }
        Ok(())
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn unit(&self) -> Unit {
        Unit::Completion
    }

    fn anchor(&self) -> Option<Anchor> {
        self.anchor.then_some(Anchor::Mismatched)
    }

    fn terms(&self, unit: &[Completion], anchor: f64, terms: &mut [Term]) {
        for (completion, term) in unit.iter().zip(terms) {
            let x = self.beta * (completion.log_ratio() - anchor);
            let (weight, sign) = if completion.is_desirable {
                (self.desirable_weight, 1.0)
            } else {
                (self.undesirable_weight, -1.0)
            };
            let slope = -sign * weight * self.beta * sigmoid(x) * sigmoid(-x);
            *term = Term { value: weight * sigmoid(-sign * x), slope };
        }
    }
}
