use super::kernel::{Clipped, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm};
use crate::kl::LOG_RATIO_LIMIT;
use crate::settings::keys::{OutOfRange, check, settings};
use crate::{RatioTo, WeightAction, WeightLevel};

settings! {
    /// Variational sequence-level soft policy optimisation (arXiv 2602.10693), per token: ℓ = −sg(φ(w))·A·lp with the
    /// ratio of the whole sequence w = exp(Σ_t (lp_t − old_t)) and the gamma kernel φ(w) = w^k·exp(λ(1 − w)), φ(1) = 1.
    Vespo {
        /// Power k for A ≥ 0: attenuates sequences that have become less likely.
        k_positive: f64 = 2.0,
        /// Decay λ for A ≥ 0: attenuates sequences that have become more likely.
        lambda_positive: f64 = 3.0,
        /// Power k for A < 0.
        k_negative: f64 = 3.0,
        /// Decay λ for A < 0.
        lambda_negative: f64 = 2.0,
    }
}

impl Kernel for Vespo {
    fn check(&self) -> Result<(), OutOfRange> {
        let hint = "k = 2, λ = 3 for A >= 0 and k = 3, λ = 2 for A < 0 are usual";
        check("k_positive", self.k_positive, self.k_positive >= 0.0, "0 or more", hint)?;
        check("lambda_positive", self.lambda_positive, self.lambda_positive > 0.0, "above 0", hint)?;
        check("k_negative", self.k_negative, self.k_negative >= 0.0, "0 or more", hint)?;
        check("lambda_negative", self.lambda_negative, self.lambda_negative > 0.0, "above 0", hint)
    }

    fn scope(&self) -> Scope {
        Scope::Sequence
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    /// The kernel is already an importance weight: relative to the sampler, it also covers staleness.
    fn stale_ratio_to(&self) -> RatioTo {
        RatioTo::Behavior
    }

    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight { level: WeightLevel::Sequence, action: WeightAction::Mask })
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        let sum: f64 = (0..row.len()).map(|t| row.log_ratio(t)).sum();
        let log_w = sum.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT);
        let kernel = |k: f64, lambda: f64| (lambda + k * log_w - lambda * log_w.exp()).exp();
        let positive = kernel(self.k_positive, self.lambda_positive);
        let negative = kernel(self.k_negative, self.lambda_negative);
        for (t, term) in terms.iter_mut().enumerate().take(row.len()) {
            let a = row.advantage[t];
            let wa = if a >= 0.0 { positive } else { negative } * a;
            *term = TokenTerm { value: -wa * row.lp[t], d_logprob: -wa, clipped: Clipped::No };
        }
    }
}
