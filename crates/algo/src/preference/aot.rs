use super::kernel::{Completion, Kernel, Term, Unit, check_beta, smoothed};
use super::robust::check_smoothing;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Alignment by optimal transport (arXiv 2406.05882): ℓ = −log σ(βδ) with δ = sort(Σ lp_c − Σ lp_r) − sort(Σ ref_c − Σ ref_r), both
    /// sorted over the optimiser step. With `paired = false`, δ = sort(d_c) − sort(d_r): which completions form a pair does not
    /// matter.
    Aot {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Probability ε that a label is wrong, from 0 to below 0.5.
        label_smoothing: f64 = 0.0,
        /// Sorts the margins of policy and reference; otherwise the log-ratios of chosen and rejected completions.
        paired: bool = true,
    }
}

impl Kernel for Aot {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check_smoothing(self.label_smoothing)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn unit(&self) -> Unit {
        Unit::Step
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        let pairs: Vec<(Completion, Completion)> =
            unit.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let sorted = |value: fn(&(Completion, Completion)) -> f64| {
            let mut order: Vec<(f64, usize)> = pairs.iter().map(value).zip(0..).collect();
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            order
        };
        let (high, low) = if self.paired {
            (sorted(|(c, r)| c.lp - r.lp), sorted(|(c, r)| c.reference - r.reference))
        } else {
            (sorted(|(c, _)| c.log_ratio()), sorted(|(_, r)| r.log_ratio()))
        };
        for ((high, of_high), (low, of_low)) in high.into_iter().zip(low) {
            let (value, slope) = smoothed(self.beta * (high - low), self.label_smoothing);
            let slope = self.beta * slope;
            terms[2 * of_high] = Term { value, slope };
            // The reference's margins are constants: the rejected completion is the policy's of the same pair.
            let rejected = if self.paired { of_high } else { of_low };
            terms[2 * rejected + 1] = Term { value: 0.0, slope: -slope };
        }
    }
}
