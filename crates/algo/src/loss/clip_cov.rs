use super::covariance::{check_share, count, covariances, first, is_picked};
use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, StaleWeight, StepToken, TokenTerm, each};
use super::ppo_clip::PpoClip;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Clip-Cov (arXiv 2505.22617): `ppo_clip` without some tokens, drawn among the unclipped ones with
    /// low < c_t < high, where c_t = (A_t − mean A)(old_t − mean old) over the step.
    ///
    /// `old` is the denominator of the ratio. (verl computes c_t from the current log-probability and per micro-batch.)
    /// Of N tokens ⌊share·N⌋ are drawn, at least one if there is a candidate and all of them if there are fewer: those
    /// with the smallest random numbers.
    ClipCov {
        /// ε_low: the ratio's lower bound is 1 − ε_low.
        clip_low: f64 = 0.2,
        /// ε_high: the ratio's upper bound is 1 + ε_high.
        clip_high: f64 = 0.2,
        /// Upper bound of the ratio for negative advantages, above 1; unset for no dual clip.
        dual_clip: Option<f64> = None,
        /// Fraction of the step's tokens to draw.
        cov_share: f64 = 2e-4,
        /// Covariance above which a token may be drawn.
        cov_low: f64 = 1.0,
        /// Covariance below which a token may be drawn.
        cov_high: f64 = 5.0,
    }
}

impl ClipCov {
    fn clip(&self) -> PpoClip {
        PpoClip { clip_low: self.clip_low, clip_high: self.clip_high, dual_clip: self.dual_clip }
    }
}

impl Kernel for ClipCov {
    fn check(&self) -> Result<(), OutOfRange> {
        self.clip().check()?;
        check_share(self.cov_share)?;
        check("cov_low", self.cov_low, true, "a number", "1 is the paper's")?;
        check("cov_high", self.cov_high, self.cov_high > self.cov_low, "above cov_low", "5 is the paper's")
    }

    fn scope(&self) -> Scope {
        Scope::Step
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        self.clip().bounds()
    }

    fn pick(&self, tokens: &[StepToken], draw: &dyn Fn(u64) -> u64) -> Vec<u64> {
        let clip = self.clip();
        let is_clipped = |t: &StepToken| clip.term(t.log_ratio, t.advantage).clipped != Clipped::No;
        let candidates = covariances(tokens)
            .iter()
            .zip(tokens)
            .filter(|&(&c, t)| c > self.cov_low && c < self.cov_high && !is_clipped(t))
            .map(|(_, t)| (draw(t.position), t.position))
            .collect();
        first(candidates, count(self.cov_share, tokens.len()))
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
        let clip = self.clip();
        each(row, terms, |t| {
            if is_picked(row, t) {
                return TokenTerm::default();
            }
            clip.term(row.log_ratio(t), row.advantage[t])
        });
    }
}
