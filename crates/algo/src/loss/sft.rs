use serde::{Deserialize, Serialize};

use super::kernel::{Clipped, Kernel, Reads, Row, TokenTerm, each};

/// Negative log-likelihood of the demonstration's completion tokens: ℓ = −lp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sft;

impl Kernel for Sft {
    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| TokenTerm { value: -row.lp[t], d_logprob: -1.0, clipped: Clipped::No });
    }
}
