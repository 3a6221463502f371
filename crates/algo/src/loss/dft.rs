use serde::{Deserialize, Serialize};

use super::kernel::{Clipped, Kernel, Reads, Row, TokenTerm, each};

/// Negative log-likelihood of the demonstration's completion tokens, each weighted by its probability, which is held constant:
/// ℓ = −sg(p)·lp with p = exp(lp) (dynamic fine-tuning, arXiv 2508.05629).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dft;

impl Kernel for Dft {
    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let p = row.lp[t].exp();
            TokenTerm { value: -p * row.lp[t], d_logprob: -p, clipped: Clipped::No }
        });
    }
}
