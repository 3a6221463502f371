use super::kernel::{Completion, Kernel, Term, check_beta, each_pair, smoothed};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Odds-ratio preference optimisation (arXiv 2403.07691): ℓ = −p_c − β·log σ(log odds_c − log odds_r), with the mean
    /// log-probability p and log odds = p − log(1 − exp(p)). β is the paper's λ. There is no reference.
    Orpo {
        /// Weight λ of the odds ratio relative to the likelihood of the chosen completion.
        beta: f64 = 0.1,
    }
}

impl Kernel for Orpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn reward(&self, completion: &Completion) -> f64 {
        self.beta * completion.mean()
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let (of_chosen, of_rejected) = (log_odds(chosen.mean()), log_odds(rejected.mean()));
            let (value, slope) = smoothed(of_chosen.0 - of_rejected.0, 0.0);
            (
                self.beta * value - chosen.mean(),
                (self.beta * slope * of_chosen.1 - 1.0) / chosen.tokens,
                -self.beta * slope * of_rejected.1 / rejected.tokens,
            )
        });
    }
}

/// Largest mean log-probability whose odds are computed; those of a probability of 1 are infinite.
const MAX_MEAN: f64 = -1e-6;

/// p − log(1 − exp(p)) and its derivative by p.
fn log_odds(p: f64) -> (f64, f64) {
    let p = p.min(MAX_MEAN);
    let rest = -p.exp_m1();
    (p - rest.ln(), 1.0 / rest)
}
