use super::kernel::{Anchor, Completion, Kernel, Term, Unit};
use super::weighted::WeightedLosses;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Mixed preference optimisation (arXiv 2411.10442): ℓ = Σ w·ℓ over a list of losses of pairs.
    Mpo {
        /// Losses of pairs, each a table of `kind`, `weight` (1 by default) and the settings of that loss.
        losses: WeightedLosses = WeightedLosses::default(),
    }
}

impl Mpo {
    fn kernels(&self) -> impl Iterator<Item = (f64, &dyn Kernel)> {
        self.losses.iter().map(|loss| (loss.weight, loss.loss.kernel()))
    }

    /// The first loss with a reference, or the first one: the metrics are in its terms.
    fn lead(&self) -> Option<&dyn Kernel> {
        let mut kernels = self.kernels().map(|(_, kernel)| kernel);
        kernels.find(|kernel| kernel.reads_reference()).or_else(|| Some(self.kernels().next()?.1))
    }
}

impl Kernel for Mpo {
    fn check(&self) -> Result<(), OutOfRange> {
        let count = self.losses.iter().len() as f64;
        check("losses", count, count > 0.0, "at least one loss", "add one, such as { kind = \"dpo\" }")?;
        for (weight, kernel) in self.kernels() {
            check("losses", weight, weight >= 0.0, "a weight of 0 or more", "1 is usual")?;
            let tail = kernel.tail_weight();
            check(
                "losses",
                tail,
                tail == 1.0,
                "a `tail_weight` of 1, as in a list of losses",
                "leave it out",
            )?;
            kernel.check().map_err(|error| OutOfRange { key: "losses", ..error })?;
        }
        Ok(())
    }

    fn beta(&self) -> f64 {
        self.lead().map_or(1.0, super::kernel::Kernel::beta)
    }

    fn reads_reference(&self) -> bool {
        self.kernels().any(|(_, kernel)| kernel.reads_reference())
    }

    fn unit(&self) -> Unit {
        let sees_step = self.kernels().any(|(_, kernel)| kernel.unit() == Unit::Step);
        if sees_step { Unit::Step } else { Unit::Pair }
    }

    fn anchor(&self) -> Option<Anchor> {
        self.kernels().find_map(|(_, kernel)| kernel.anchor())
    }

    fn reward(&self, completion: &Completion) -> f64 {
        self.lead().map_or(0.0, |kernel| kernel.reward(completion))
    }

    fn terms(&self, unit: &[Completion], anchor: f64, terms: &mut [Term]) {
        let mut own = vec![Term::default(); terms.len()];
        for (weight, kernel) in self.kernels() {
            kernel.terms(unit, anchor, &mut own);
            for (sum, term) in terms.iter_mut().zip(&own) {
                sum.value += weight * term.value;
                sum.slope += weight * term.slope;
            }
        }
    }
}
