use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, TokenTerm, ratio};
use crate::Level;
use crate::settings::keys::settings;

settings! {
    /// Tapered off-policy REINFORCE (arXiv 2503.14286): ℓ = −A·lp for A ≥ 0 and −w·A·lp for A < 0, with the truncated
    /// importance weight w = sg(min(π/β, 1)) to the sampler β.
    Topr {
        /// The unit over which the weight is taken. Sequence: exp(Σ_t (lp − beh)), as in the paper. Token: exp(lp −
        /// beh), as in ROLL.
        level: Level = Level::Sequence,
    }
}

impl Kernel for Topr {
    fn scope(&self) -> Scope {
        match self.level {
            Level::Token => Scope::Token,
            Level::Sequence => Scope::Sequence,
        }
    }

    fn reads(&self) -> Reads {
        Reads::BEHAVIOR
    }

    fn bounds(&self) -> Bounds {
        Bounds::HIGH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        let of_token = |t: usize| row.lp[t] - row.behavior[t];
        let whole: f64 = (0..row.len()).map(of_token).sum();
        for (t, term) in terms.iter_mut().enumerate().take(row.len()) {
            let a = row.advantage[t];
            let log_ratio = if self.level == Level::Sequence { whole } else { of_token(t) };
            let (weight, clipped) = match ratio(log_ratio).0 {
                _ if a >= 0.0 => (1.0, Clipped::No),
                w if w > 1.0 => (1.0, Clipped::High),
                w => (w, Clipped::No),
            };
            *term = TokenTerm { value: -weight * a * row.lp[t], d_logprob: -weight * a, clipped };
        }
    }
}
