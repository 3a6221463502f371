use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm};
use crate::kl::LOG_RATIO_LIMIT;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Geometric-mean policy optimisation (arXiv 2507.20673): with λ_t = lp_t − old_t clipped in log space against the
    /// advantage's sign, l_t = min(λ_t, ε_high) for A > 0 and max(λ_t, −ε_low) for A < 0,
    ///
    /// ℓ_i = −A_i·exp(mean_t l_t), over the number of sequences.
    Gmpo {
        /// ε_low: the log-ratio's lower bound is −ε_low.
        clip_low: f64 = 0.4,
        /// ε_high: the log-ratio's upper bound is ε_high.
        clip_high: f64 = 0.4,
    }
}

impl Kernel for Gmpo {
    fn check(&self) -> Result<(), OutOfRange> {
        let (must, hint) = ("above 0: it bounds a log-ratio", "0.4 is the paper's");
        check("clip_low", self.clip_low, self.clip_low > 0.0, must, hint)?;
        check("clip_high", self.clip_high, self.clip_high > 0.0, must, hint)
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

    /// Both the ratio and the weight are means over the sequence in log space.
    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::GEOMETRIC)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        let n = row.len() as f64;
        let mut sum = 0.0;
        for (t, term) in terms.iter_mut().enumerate().take(row.len()) {
            let (log_ratio, a) = (row.log_ratio(t), row.advantage[t]);
            let (l, clipped) = if a > 0.0 && log_ratio > self.clip_high {
                (self.clip_high, Clipped::High)
            } else if a < 0.0 && log_ratio < -self.clip_low {
                (-self.clip_low, Clipped::Low)
            } else {
                (log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), Clipped::No)
            };
            sum += l;
            // 1 if the token changes the mean; scaled below.
            let moves = clipped == Clipped::No && log_ratio.abs() <= LOG_RATIO_LIMIT;
            *term = TokenTerm { value: 0.0, d_logprob: f64::from(u8::from(moves)), clipped };
        }
        let mean = (sum / n).exp();
        for (term, &a) in terms.iter_mut().zip(row.advantage) {
            term.value = -a * mean / n;
            term.d_logprob *= -a * mean / n;
        }
    }
}
