use super::kernel::{Clipped, Kernel, Reads, Row, StaleWeight, TokenTerm, each};
use crate::RatioTo;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// The quadratic loss of direct reward optimisation (arXiv 2405.19107) in the form of verl, per token:
    /// ℓ = −A·lp + (β/2)·(lp − old)². The penalty bounds the change; there is no ratio and no clip.
    Dro {
        /// Weight β of the squared log-ratio.
        beta: f64 = 0.1,
    }
}

impl Kernel for Dro {
    fn check(&self) -> Result<(), OutOfRange> {
        check("beta", self.beta, self.beta > 0.0, "above 0", "0.1 is moderate; larger values stay nearer")
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    /// The squared log-ratio is a regression towards the sampler, regardless of its version.
    fn stale_ratio_to(&self) -> RatioTo {
        RatioTo::Behavior
    }

    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::TOKEN)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (log_ratio, a) = (row.log_ratio(t), row.advantage[t]);
            TokenTerm {
                value: -a * row.lp[t] + 0.5 * self.beta * log_ratio * log_ratio,
                d_logprob: -a + self.beta * log_ratio,
                clipped: Clipped::No,
            }
        });
    }
}
