use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm, ratio};
use super::ppo_clip::check_clip;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Group sequence policy optimisation (arXiv 2507.18071): the ratio of a sequence is the geometric mean of its
    /// tokens', s = exp(mean_t(lp_t − old_t)), and
    ///
    /// ℓ_i = −min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i), over the number of sequences.
    Gspo {
        /// ε_low: the ratio's lower bound is 1 − ε_low.
        clip_low: f64 = 3e-4,
        /// ε_high: the ratio's upper bound is 1 + ε_high.
        clip_high: f64 = 4e-4,
    }
}

/// The geometric mean of a sequence's ratios with a clip.
pub(super) struct SequenceClip {
    pub(super) low: f64,
    pub(super) high: f64,
    /// Factor of each token's term.
    pub(super) share: f64,
}

impl SequenceClip {
    /// The active bound for an advantage and its value.
    fn bound(&self, s: f64, a: f64) -> Option<(f64, Clipped)> {
        if a > 0.0 && s > 1.0 + self.high {
            Some((1.0 + self.high, Clipped::High))
        } else if a < 0.0 && s < 1.0 - self.low {
            Some((1.0 - self.low, Clipped::Low))
        } else {
            None
        }
    }

    pub(super) fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        let n = row.len() as f64;
        let mean = (0..row.len()).map(|t| row.log_ratio(t)).sum::<f64>() / n;
        let (s, slope) = ratio(mean);
        let share = self.share;
        for (term, &a) in terms.iter_mut().zip(row.advantage) {
            *term = match self.bound(s, a) {
                Some((bound, clipped)) => TokenTerm { value: -bound * a * share, d_logprob: 0.0, clipped },
                None => {
                    TokenTerm { value: -s * a * share, d_logprob: -slope * a * share, clipped: Clipped::No }
                }
            };
        }
    }
}

impl Kernel for Gspo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_clip(self.clip_low, self.clip_high)
    }

    fn scope(&self) -> Scope {
        Scope::Sequence
    }

    fn is_per_sequence(&self) -> bool {
        true
    }

    fn is_mean(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        Bounds::BOTH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn idle_on_policy(&self) -> &'static [&'static str] {
        &["clip_low", "clip_high"]
    }

    /// Both the ratio and the weight are means over the sequence in log space: their product is the same ratio to the
    /// sampler.
    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::GEOMETRIC)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        // Each token has 1/n of the value and, because of the mean, of the derivative.
        let share = 1.0 / row.len() as f64;
        SequenceClip { low: self.clip_low, high: self.clip_high, share }.row(row, terms);
    }
}
