use serde::{Deserialize, Serialize};

use super::kernel::{Clipped, Kernel, Reads, Row, Scope, TokenTerm};
use super::sapo::sigmoid;

/// Loss of PRIME's implicit process-reward model (arXiv 2502.01456, eq. 5): with S = β·Σ_t (lp_t − ref_t),
///
/// ℓ_i = cross-entropy of σ(S_i) with the outcome o_i, over the number of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ImplicitReward {
    /// β > 0.
    pub beta: f64,
}

impl Kernel for ImplicitReward {
    fn scope(&self) -> Scope {
        Scope::Sequence
    }

    fn is_per_sequence(&self) -> bool {
        true
    }

    fn is_mean(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads { reference: true, outcome: true, ..Reads::default() }
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        let n = row.len() as f64;
        let s: f64 = self.beta * row.lp.iter().zip(row.reference).map(|(lp, r)| lp - r).sum::<f64>();
        // log(1 + e^s) − o·s, without overflow.
        let value = s.max(0.0) + (-s.abs()).exp().ln_1p() - row.outcome * s;
        let d_logprob = self.beta * (sigmoid(s) - row.outcome);
        terms.fill(TokenTerm { value: value / n, d_logprob, clipped: Clipped::No });
    }
}
