use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, StaleWeight, TokenTerm, each, ratio};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// PPO's clipped surrogate (arXiv 1707.06347, eq. 7), per token:
    ///
    /// ℓ = max(−ρA, −clip(ρ, 1 − ε_low, 1 + ε_high)·A), ρ = exp(lp − old).
    ///
    /// ε_high > ε_low is DAPO's clip-higher (arXiv 2503.14476). With a dual clip c (arXiv 1912.09729), ℓ = min(ℓ, −cA)
    /// where A < 0. Where a constant branch is active the gradient is zero.
    PpoClip {
        /// ε_low: the ratio's lower bound is 1 − ε_low.
        clip_low: f64 = 0.2,
        /// ε_high: the ratio's upper bound is 1 + ε_high.
        clip_high: f64 = 0.2,
        /// Upper bound of the ratio for negative advantages, above 1; unset for no dual clip.
        dual_clip: Option<f64> = None,
    }
}

/// Checks ε_low and ε_high of a clipped ratio.
pub(super) fn check_clip(low: f64, high: f64) -> Result<(), OutOfRange> {
    check(
        "clip_low",
        low,
        low > 0.0 && low < 1.0,
        "between 0 and 1: the ratio's lower bound is 1 - clip_low",
        "0.2 is usual",
    )?;
    check(
        "clip_high",
        high,
        high > 0.0,
        "above 0: the ratio's upper bound is 1 + clip_high",
        "0.2 is usual, 0.28 for clip-higher",
    )
}

impl PpoClip {
    pub(super) fn term(&self, log_ratio: f64, a: f64) -> TokenTerm {
        let (ratio, slope) = ratio(log_ratio);
        let constant = |bound: f64, clipped| TokenTerm { value: -bound * a, d_logprob: 0.0, clipped };
        if a > 0.0 && ratio > 1.0 + self.clip_high {
            return constant(1.0 + self.clip_high, Clipped::High);
        }
        if a < 0.0 && ratio < 1.0 - self.clip_low {
            return constant(1.0 - self.clip_low, Clipped::Low);
        }
        if let Some(c) = self.dual_clip.filter(|&c| a < 0.0 && ratio > c) {
            return constant(c, Clipped::Dual);
        }
        TokenTerm { value: -ratio * a, d_logprob: -slope * a, clipped: Clipped::No }
    }
}

impl Kernel for PpoClip {
    fn check(&self) -> Result<(), OutOfRange> {
        check_clip(self.clip_low, self.clip_high)?;
        let Some(c) = self.dual_clip else { return Ok(()) };
        check(
            "dual_clip",
            c,
            c > 1.0,
            "above 1: it bounds the ratio of tokens with a negative advantage, and that starts at 1",
            "3.0 is usual; leave it out for no dual clip",
        )
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        Bounds { dual: self.dual_clip.is_some(), ..Bounds::BOTH }
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn idle_on_policy(&self) -> &'static [&'static str] {
        &["clip_low", "clip_high", "dual_clip"]
    }

    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::TOKEN)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| self.term(row.log_ratio(t), row.advantage[t]));
    }
}
