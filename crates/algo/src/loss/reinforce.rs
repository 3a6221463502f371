use super::kernel::{Clipped, Kernel, SequenceLoss, Token, TokenLoss, TokenTerm};
use crate::Level;

/// The plain policy gradient (Williams 1992), without a ratio: right only for samples of the current policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reinforce {
    /// Token: ℓ = −A_t·lp_t, over the aggregation. Sequence: ℓ_i = −A_i·Σ_t lp_t, the completion as one action
    /// (arXiv 2402.14740), over the number of sequences.
    pub level: Level,
}

impl Reinforce {
    pub(super) fn kernel(&self) -> Kernel<'_> {
        match self.level {
            Level::Token => Kernel::Token(self),
            Level::Sequence => Kernel::Sequence(self),
        }
    }
}

impl TokenLoss for Reinforce {
    fn term(&self, token: Token) -> TokenTerm {
        TokenTerm { value: -token.advantage * token.lp, d_logprob: -token.advantage, clipped: Clipped::No }
    }
}

impl SequenceLoss for Reinforce {
    fn term(&self, logprob: &[f32], advantage: f64, d_logprob: &mut [f64]) -> f64 {
        d_logprob.fill(-advantage);
        -advantage * logprob.iter().map(|&lp| f64::from(lp)).sum::<f64>()
    }
}
