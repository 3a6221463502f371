use std::cmp::Ordering;

use super::covariance::{check_share, count, covariances, first, is_picked};
use super::kernel::{Clipped, Kernel, Reads, Row, Scope, StaleWeight, StepToken, TokenTerm, each, ratio};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// KL-Cov (arXiv 2505.22617): ℓ = −ρA, plus k·|lp − old| on the ⌊share·N⌋ tokens, at least one, of the largest
    /// covariance c_t; ties go to the first token.
    KlCov {
        /// Fraction of the step's tokens with the penalty.
        cov_share: f64 = 2e-4,
        /// Weight k of the penalty on the selected tokens.
        cov_coef: f64 = 1.0,
    }
}

/// Largest first.
#[derive(PartialEq)]
struct Descending(f64);

impl Eq for Descending {}

impl Ord for Descending {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Descending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Kernel for KlCov {
    fn check(&self) -> Result<(), OutOfRange> {
        check_share(self.cov_share)?;
        check("cov_coef", self.cov_coef, self.cov_coef > 0.0, "above 0", "1 is the paper's")
    }

    fn scope(&self) -> Scope {
        Scope::Step
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn pick(&self, tokens: &[StepToken], _draw: &dyn Fn(u64) -> u64) -> Vec<u64> {
        let candidates =
            covariances(tokens).iter().zip(tokens).map(|(&c, t)| (Descending(c), t.position)).collect();
        first(candidates, count(self.cov_share, tokens.len()))
    }

    /// The penalty on |lp − old| is a mean over the proximal policy's tokens, like the rest of the term, and has the
    /// same weight.
    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::TOKEN)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (log_ratio, a) = (row.log_ratio(t), row.advantage[t]);
            let (ratio, slope) = ratio(log_ratio);
            // f64::signum is ±1 at ±0; the subgradient there is 0.
            let sign = if log_ratio == 0.0 { 0.0 } else { log_ratio.signum() };
            let k = if is_picked(row, t) { self.cov_coef } else { 0.0 };
            TokenTerm {
                value: -ratio * a + k * log_ratio.abs(),
                d_logprob: -slope * a + k * sign,
                clipped: Clipped::No,
            }
        });
    }
}
