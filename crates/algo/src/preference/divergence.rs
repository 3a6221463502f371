use super::kernel::{log_sigmoid, sigmoid};
use crate::settings::choices::choices;

choices! {
    /// Divergence from the reference in f-DPO (arXiv 2309.16240). With t = π/π_ref, the implicit reward is β·f′(t).
    Divergence {
        /// KL(π ‖ π_ref): d.
        ReverseKl = "reverse_kl",
        /// KL(π_ref ‖ π): 1 − exp(−d).
        ForwardKl = "forward_kl",
        /// Jensen-Shannon: log 2 + log σ(d).
        Js = "js",
        /// α-divergence: (exp((α−1)·d) − 1)/(α−1).
        Alpha = "alpha",
    }
}

/// Largest argument of `exp`, as in TRL.
const MAX_EXPONENT: f64 = 80.0;

impl Divergence {
    /// f′(exp(d)) up to a constant, and its derivative by d.
    pub(crate) fn score(self, d: f64, alpha: f64) -> (f64, f64) {
        match self {
            Self::ReverseKl => (d, 1.0),
            Self::ForwardKl => {
                let e = (-d).min(MAX_EXPONENT).exp();
                (1.0 - e, e)
            }
            Self::Js => (std::f64::consts::LN_2 + log_sigmoid(d), sigmoid(-d)),
            Self::Alpha => {
                let power = alpha - 1.0;
                let e = (power * d).min(MAX_EXPONENT).exp();
                ((e - 1.0) / power, e)
            }
        }
    }
}
