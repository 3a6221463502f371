use super::kernel::{Clipped, Token, TokenLoss, TokenTerm};

/// Negative log-likelihood of the demonstration's completion tokens: ℓ = −lp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sft;

impl TokenLoss for Sft {
    fn term(&self, token: Token) -> TokenTerm {
        TokenTerm { value: -token.lp, d_logprob: -1.0, clipped: Clipped::No }
    }
}
