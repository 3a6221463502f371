use serde::{Deserialize, Serialize};

use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, TokenTerm, each, ratio};

/// How far a token's probability has moved from the sampler's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// |p − p_beh|: the total variation of "this token or another".
    TotalVariation,
    /// KL(Bernoulli(p_beh) ‖ Bernoulli(p)).
    BinaryKl,
}

/// Policy optimisation inside a divergence's trust region (arXiv 2602.04879), per token:
/// ℓ = −keep·sg(min(exp(lp − beh), cap))·A·lp. A token is not kept once its probability has moved in the advantage's
/// direction by a divergence of more than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dppo {
    /// How the move is measured.
    pub divergence: Divergence,
    /// δ > 0.
    pub limit: f64,
    /// Upper bound of the importance weight, > 0.
    pub cap: f64,
}

impl Dppo {
    fn divergence(&self, lp: f64, behavior: f64) -> f64 {
        let (p, q) = (lp.exp(), behavior.exp());
        match self.divergence {
            Divergence::TotalVariation => (p - q).abs(),
            Divergence::BinaryKl => {
                // log(1 − e^x) by expm1: probabilities near 1 keep their digits.
                let log_other = |x: f64| (-x.min(0.0).exp_m1()).ln();
                let others = if q < 1.0 { (1.0 - q) * (log_other(behavior) - log_other(lp)) } else { 0.0 };
                q * (behavior - lp) + others
            }
        }
    }
}

impl Kernel for Dppo {
    fn reads(&self) -> Reads {
        Reads::BEHAVIOR
    }

    fn bounds(&self) -> Bounds {
        Bounds::BOTH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (lp, behavior, a) = (row.lp[t], row.behavior[t], row.advantage[t]);
            let moved_along = (lp - behavior) * a > 0.0;
            if moved_along && self.divergence(lp, behavior) > self.limit {
                let clipped = if a > 0.0 { Clipped::High } else { Clipped::Low };
                return TokenTerm { value: 0.0, d_logprob: 0.0, clipped };
            }
            let wa = ratio(lp - behavior).0.min(self.cap) * a;
            TokenTerm { value: -wa * lp, d_logprob: -wa, clipped: Clipped::No }
        });
    }
}
