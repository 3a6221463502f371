use super::kernel::{Anchor, Completion, Kernel, Term, each_pair};
use crate::settings::keys::settings;

settings! {
    /// Negative log-likelihood of the chosen completions, a mean over their tokens in the optimiser step: ℓ = −Σ lp_c / n with n as in
    /// [`Anchor::ChosenTokens`](crate::Anchor::ChosenTokens).
    ChosenNll {}
}

impl Kernel for ChosenNll {
    fn beta(&self) -> f64 {
        1.0
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(Anchor::ChosenTokens)
    }

    fn reward(&self, completion: &Completion) -> f64 {
        completion.lp
    }

    fn terms(&self, unit: &[Completion], anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, _| (-chosen.lp / anchor, -1.0 / anchor, 0.0));
    }
}
