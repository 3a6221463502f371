use super::kernel::{Clipped, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm};
use crate::settings::keys::{OutOfRange, check, settings};
use crate::{Level, RatioTo, WeightAction, WeightLevel};

settings! {
    /// Policy mirror descent of Kimi k1.5 (arXiv 2501.12599, eq. 3): a policy gradient with a squared log-ratio as the
    /// penalty on the change.
    ///
    /// At sequence level ℓ_i = −A_i·Σ_t lp_t + (τ/2)·(Σ_t (lp_t − old_t))², over the number of sequences: as in the
    /// paper. At token level ℓ = −A·lp + (τ/2)·(lp − old)², over the aggregation, as in ROLL.
    Kimi {
        /// The unit that counts as one action: a sequence or a token.
        level: Level = Level::Sequence,
        /// Weight τ of the squared log-ratio.
        tau: f64 = 0.1,
    }
}

impl Kernel for Kimi {
    fn check(&self) -> Result<(), OutOfRange> {
        check("tau", self.tau, self.tau > 0.0, "above 0", "0.1 is usual")
    }

    fn scope(&self) -> Scope {
        if self.is_per_sequence() { Scope::Sequence } else { Scope::Token }
    }

    fn is_per_sequence(&self) -> bool {
        self.level == Level::Sequence
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    /// The squared log-ratio is a regression towards the sampler, regardless of its version.
    fn stale_ratio_to(&self) -> RatioTo {
        RatioTo::Behavior
    }

    fn stale_weight(&self) -> Option<StaleWeight> {
        let level = match self.level {
            Level::Token => WeightLevel::Token,
            Level::Sequence => WeightLevel::Sequence,
        };
        Some(StaleWeight { level, action: WeightAction::Mask })
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        let whole: f64 = (0..row.len()).map(|t| row.log_ratio(t)).sum();
        for (t, term) in terms.iter_mut().enumerate().take(row.len()) {
            let a = row.advantage[t];
            // The penalty of a sequence is divided over its tokens in proportion to their log-ratios.
            let moved = if self.is_per_sequence() { whole } else { row.log_ratio(t) };
            *term = TokenTerm {
                value: -a * row.lp[t] + 0.5 * self.tau * moved * row.log_ratio(t),
                d_logprob: -a + self.tau * moved,
                clipped: Clipped::No,
            };
        }
    }
}
