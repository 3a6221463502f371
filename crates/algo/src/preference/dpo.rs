use super::divergence::Divergence;
use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, smoothed};
use crate::settings::keys::{OutOfRange, check, settings};

/// Exponent of the α-divergence.
const ALPHA: f64 = 0.5;

settings! {
    /// Direct preference optimisation (arXiv 2305.18290): ℓ = −log σ(β·(s_c − s_r)) with s = g(d).
    ///
    /// g is the identity for the reverse KL; f-DPO (arXiv 2309.16240) has others. With `average` d is divided by the number of
    /// tokens. With `tail_weight` below 1 (LD-DPO, arXiv 2409.06411) tokens beyond the length of the pair's shorter completion
    /// count less.
    Dpo {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Divides the log-ratio of a completion by its number of tokens.
        average: bool = false,
        /// Divergence from the reference that the implicit reward follows from.
        divergence: Divergence = Divergence::ReverseKl,
        /// Exponent of the α-divergence, which alone reads it; 0.5 by default.
        alpha: Option<f64> = None,
        /// Weight of the tokens of a completion beyond the length of the shorter one of its pair.
        tail_weight: f64 = 1.0,
    }
}

impl Kernel for Dpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)?;
        check(
            "tail_weight",
            self.tail_weight,
            (0.0..=1.0).contains(&self.tail_weight),
            "between 0 and 1",
            "1 for none",
        )?;
        let Some(alpha) = self.alpha else { return Ok(()) };
        if self.divergence != Divergence::Alpha {
            let must = "read: only divergence = \"alpha\" has an exponent";
            return Err(OutOfRange { key: "alpha", value: alpha, must, hint: "leave it out" });
        }
        check("alpha", alpha, alpha != 1.0, "other than 1, which is the reverse KL", "0.5 is usual")
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn tail_weight(&self) -> f64 {
        self.tail_weight
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        let score = |completion: &Completion| {
            let (score, slope) = self.divergence.score(completion.log_ratio(), self.alpha.unwrap_or(ALPHA));
            let tokens = if self.average { completion.tokens } else { 1.0 };
            (score / tokens, slope / tokens)
        };
        each_pair(unit, terms, |chosen, rejected| {
            let (chosen, rejected) = (score(chosen), score(rejected));
            let (value, slope) = smoothed(self.beta * (chosen.0 - rejected.0), 0.0);
            (value, self.beta * slope * chosen.1, -self.beta * slope * rejected.1)
        });
    }
}
