//! Estimators of KL(policy ‖ reference) from the log-probability of the sampled token
//! (Schulman, "Approximating KL divergence", 2020, joschu.net/blog/kl-approx.html).

use serde::{Deserialize, Serialize};

/// Bound of log-ratios before `exp`: e²⁰ ≈ 4.9e8 exceeds all useful ratios, and nothing overflows.
pub(crate) const LOG_RATIO_LIMIT: f64 = 20.0;

/// A clamped log-ratio's exponential, and its derivative by the log-ratio: the clamp is a constant branch.
pub(crate) fn ratio(log_ratio: f64) -> (f64, f64) {
    let ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp();
    (ratio, if log_ratio.abs() <= LOG_RATIO_LIMIT { ratio } else { 0.0 })
}

/// Estimator of the divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// lp − ref: unbiased as a value; its gradient is zero in expectation, so it belongs in the reward.
    K1,
    /// ½(lp − ref)²: gradient lp − ref, which is the gradient of the reverse KL in expectation.
    K2,
    /// exp(ref − lp) − (ref − lp) − 1: unbiased, never negative; gradient 1 − exp(ref − lp), which is the gradient
    /// of the *forward* KL in expectation.
    K3,
    /// The value of k3 with the gradient of k2: unbiased in both.
    #[serde(rename = "k3+")]
    K3Plus,
}

impl KlEstimator {
    /// Name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::K1 => "k1",
            Self::K2 => "k2",
            Self::K3 => "k3",
            Self::K3Plus => "k3+",
        }
    }

    /// Value and derivative by `lp` (nats).
    ///
    /// Above ref − lp = 20, k3 continues along its tangent: a token of vanishing probability keeps a
    /// gradient of at most e²⁰ − 1. (Clamping the whole expression, as elsewhere, has no gradient there.)
    pub fn value_and_gradient(self, lp: f64, reference: f64) -> (f64, f64) {
        let log_ratio = lp - reference;
        match self {
            Self::K1 => (log_ratio, 1.0),
            Self::K2 => (0.5 * log_ratio * log_ratio, log_ratio),
            Self::K3 => {
                let d = -log_ratio;
                let over = (d - LOG_RATIO_LIMIT).max(0.0);
                // exp_m1 keeps the digits of small divergences, which d + 1 would cancel.
                let e = d.min(LOG_RATIO_LIMIT).exp_m1();
                (e - d.min(LOG_RATIO_LIMIT) + over * e, -e)
            }
            Self::K3Plus => (Self::K3.value_and_gradient(lp, reference).0, log_ratio),
        }
    }
}

/// Place of the divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlPlacement {
    /// Subtracted from the reward, held constant: −coef·(old − ref).
    Reward,
    /// Added to the loss, with a gradient.
    Loss,
}

impl KlPlacement {
    /// Name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reward => "reward",
            Self::Loss => "loss",
        }
    }
}

/// A divergence in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlLoss {
    /// Its weight, > 0.
    pub coef: f64,
    /// k2, k3 or k3+.
    pub estimator: KlEstimator,
    /// Multiplies the KL by the importance ratio ρ, which then also has a gradient: ρk, (ρk)' = ρ(k' + k). ρ is the
    /// surrogate's ratio, or with a correction weight the ratio to the sampler. Off-policy, this makes k3 unbiased
    /// (DeepSeek-V3.2, arXiv 2512.02556, section 3.1): ρ(k3' + k3) = ρ(lp − ref), whose expectation is the gradient of
    /// the reverse KL. k3+ uses that gradient directly, so k3 and k3+ are equal with the ratio; ρk2 and its gradient
    /// are unbiased for the mean of k2.
    pub ratio: bool,
}

impl KlLoss {
    /// Value and derivative by `lp` before the weight; `log_ratio` is that of ρ.
    pub(crate) fn value_and_gradient(&self, lp: f64, reference: f64, log_ratio: f64) -> (f64, f64) {
        let (k, slope) = self.estimator.value_and_gradient(lp, reference);
        if !self.ratio {
            return (k, slope);
        }
        let (ratio, ratio_slope) = ratio(log_ratio);
        match self.estimator {
            KlEstimator::K3Plus => (ratio * k, ratio * slope),
            KlEstimator::K1 | KlEstimator::K2 | KlEstimator::K3 => {
                (ratio * k, ratio * slope + ratio_slope * k)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_at_the_reference() {
        for e in [KlEstimator::K2, KlEstimator::K3] {
            assert_eq!(e.value_and_gradient(-1.5, -1.5), (0.0, 0.0));
        }
        assert_eq!(KlEstimator::K1.value_and_gradient(-1.5, -1.5), (0.0, 1.0));
    }

    /// The derivative is that of the value everywhere, also beyond the limit, and k3 is continuous there.
    #[test]
    fn derivative_of_the_value() {
        for e in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            for lp in [-60.0, -25.0, -19.0, -3.0, -0.1, 4.0, 30.0] {
                let h = 1e-5;
                let (_, g) = e.value_and_gradient(lp, 0.0);
                let (up, _) = e.value_and_gradient(lp + h, 0.0);
                let (down, _) = e.value_and_gradient(lp - h, 0.0);
                let numeric = (up - down) / (2.0 * h);
                assert!(
                    (g - numeric).abs() <= 1e-5 * g.abs().max(1.0),
                    "{e:?} at {lp}: {g} against {numeric}"
                );
            }
        }
        let (below, _) = KlEstimator::K3.value_and_gradient(-20.0 + 1e-12, 0.0);
        let (above, _) = KlEstimator::K3.value_and_gradient(-20.0 - 1e-12, 0.0);
        assert!((below / above - 1.0).abs() < 1e-9);
    }

    /// Over all tokens, E[k1] = E[k3] = KL(p‖r) under p, and k2's gradient is the reverse KL's.
    #[test]
    fn expectations() {
        let p: [f64; 3] = [0.5, 0.3, 0.2];
        let r: [f64; 3] = [0.2, 0.2, 0.6];
        let kl: f64 = (0..3).map(|i| p[i] * (p[i] / r[i]).ln()).sum();
        for e in [KlEstimator::K1, KlEstimator::K3] {
            let mean: f64 = (0..3).map(|i| p[i] * e.value_and_gradient(p[i].ln(), r[i].ln()).0).sum();
            assert!((mean - kl).abs() < 1e-12, "{e:?}");
        }
        // d/dlogit_0 of KL = p_0 (log p_0/r_0 − KL); the score-function form needs Σ_i p_i g_i (1[i=0] − p_0).
        let exact = p[0] * ((p[0] / r[0]).ln() - kl);
        let from = |e: KlEstimator| -> f64 {
            (0..3)
                .map(|i| {
                    let (_, g) = e.value_and_gradient(p[i].ln(), r[i].ln());
                    p[i] * g * (f64::from(u8::from(i == 0)) - p[0])
                })
                .sum()
        };
        assert!((from(KlEstimator::K2) - exact).abs() < 1e-12);
        assert!(from(KlEstimator::K1).abs() < 1e-12, "k1 as a loss has no gradient in expectation");
        // KL(r‖p) by the logits is p − r.
        assert!((from(KlEstimator::K3) - (p[0] - r[0])).abs() < 1e-12);
    }

    /// Sampled from another policy β and multiplied by ρ = p/β, k3 and k3+ have the mean of KL(p‖r) and its gradient.
    #[test]
    fn expectations_off_the_policy() {
        let p: [f64; 3] = [0.5, 0.3, 0.2];
        let r: [f64; 3] = [0.2, 0.2, 0.6];
        let sampler: [f64; 3] = [0.1, 0.6, 0.3];
        let kl: f64 = (0..3).map(|i| p[i] * (p[i] / r[i]).ln()).sum();
        let exact = p[0] * ((p[0] / r[0]).ln() - kl);
        for estimator in [KlEstimator::K3, KlEstimator::K3Plus] {
            let loss = KlLoss { coef: 1.0, estimator, ratio: true };
            let of = |i: usize| loss.value_and_gradient(p[i].ln(), r[i].ln(), (p[i] / sampler[i]).ln());
            let mean: f64 = (0..3).map(|i| sampler[i] * of(i).0).sum();
            assert!((mean - kl).abs() < 1e-12, "{estimator:?}");
            let gradient: f64 =
                (0..3).map(|i| sampler[i] * of(i).1 * (f64::from(u8::from(i == 0)) - p[0])).sum();
            assert!((gradient - exact).abs() < 1e-12, "{estimator:?}");
        }
    }
}
