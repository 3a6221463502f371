use serde::{Deserialize, Serialize};

use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, TokenTerm};
use crate::kl::LOG_RATIO_LIMIT;

/// Geometric-mean policy optimisation (arXiv 2507.20673): with λ_t = lp_t − old_t clipped in log space against the
/// advantage's sign, l_t = min(λ_t, ε_high) for A > 0 and max(λ_t, −ε_low) for A < 0,
///
/// ℓ_i = −A_i·exp(mean_t l_t), over the number of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gmpo {
    /// ε_low of the log-ratio, > 0.
    pub clip_low: f64,
    /// ε_high of the log-ratio, > 0.
    pub clip_high: f64,
}

impl Kernel for Gmpo {
    fn scope(&self) -> Scope {
        Scope::Sequence
    }

    fn is_per_sequence(&self) -> bool {
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
            // For now: 1 where the token moves the mean.
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
