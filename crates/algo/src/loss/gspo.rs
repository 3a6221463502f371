use serde::{Deserialize, Serialize};

use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, TokenTerm, ratio};
use crate::Level;

/// Group sequence policy optimisation (arXiv 2507.18071): the ratio of a sequence is the geometric mean of its tokens',
/// s = exp(mean_t(lp_t − old_t)).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gspo {
    /// Sequence: ℓ_i = −min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i), over the number of sequences. Token
    /// (GSPO-token): the same with s_it = sg(s_i)·exp(lp_t − sg(lp_t)) and a token's own A_it, over the aggregation: the
    /// gradient goes to each token by its own advantage.
    pub level: Level,
    /// ε_low, in (0, 1).
    pub clip_low: f64,
    /// ε_high, > 0.
    pub clip_high: f64,
}

impl Gspo {
    /// Whether the bound is active for an advantage, and its value.
    fn bound(&self, s: f64, a: f64) -> Option<(f64, Clipped)> {
        if a > 0.0 && s > 1.0 + self.clip_high {
            Some((1.0 + self.clip_high, Clipped::High))
        } else if a < 0.0 && s < 1.0 - self.clip_low {
            Some((1.0 - self.clip_low, Clipped::Low))
        } else {
            None
        }
    }
}

impl Kernel for Gspo {
    fn scope(&self) -> Scope {
        Scope::Sequence
    }

    fn is_per_sequence(&self) -> bool {
        self.level == Level::Sequence
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
        let mean = (0..row.len()).map(|t| row.log_ratio(t)).sum::<f64>() / n;
        let (s, slope) = ratio(mean);
        // Of a sequence, each token carries its share: 1/n of the value and, by the mean, of the derivative.
        let share = if self.is_per_sequence() { 1.0 / n } else { 1.0 };
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
