use serde::{Deserialize, Serialize};

use super::kernel::{Clipped, Kernel, Reads, Row, Scope, TokenTerm, each};
use crate::Level;

/// The plain policy gradient (Williams 1992), without a ratio: right only for samples of the current policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reinforce {
    /// Token: ℓ = −A_t·lp_t, over the aggregation. Sequence: ℓ_i = −A_i·Σ_t lp_t, the completion as one action
    /// (arXiv 2402.14740), over the number of sequences.
    pub level: Level,
}

impl Kernel for Reinforce {
    fn scope(&self) -> Scope {
        if self.is_per_sequence() { Scope::Sequence } else { Scope::Token }
    }

    fn is_per_sequence(&self) -> bool {
        self.level == Level::Sequence
    }

    fn reads(&self) -> Reads {
        Reads::ADVANTAGE
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let a = row.advantage[t];
            TokenTerm { value: -a * row.lp[t], d_logprob: -a, clipped: Clipped::No }
        });
    }
}
