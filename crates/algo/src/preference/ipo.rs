use super::kernel::{Completion, Kernel, Term, check_beta, each_pair};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Identity preference optimisation (arXiv 2310.12036, eq. 17): ℓ = (d_c/|c| − d_r/|r| − 1/(2β))², where β is the paper's τ.
    /// Without `average` it is on the sums, as the equation has it.
    Ipo {
        /// Scale β of the implicit reward β·d.
        beta: f64 = 0.1,
        /// Divides the log-ratio of a completion by its number of tokens.
        average: bool = true,
    }
}

impl Kernel for Ipo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_beta(self.beta)
    }

    fn beta(&self) -> f64 {
        self.beta
    }

    fn terms(&self, unit: &[Completion], _anchor: f64, terms: &mut [Term]) {
        each_pair(unit, terms, |chosen, rejected| {
            let tokens = |completion: &Completion| if self.average { completion.tokens } else { 1.0 };
            let (of_chosen, of_rejected) = (tokens(chosen), tokens(rejected));
            let margin = chosen.log_ratio() / of_chosen - rejected.log_ratio() / of_rejected;
            let error = margin - 1.0 / (2.0 * self.beta);
            (error * error, 2.0 * error / of_chosen, -2.0 * error / of_rejected)
        });
    }
}
