/// What of an optimiser step a loss must see at once.
///
/// An engine calls the loss with whole sequences in any case. A loss of step scope is called once, with the rows of
/// the whole optimiser step, after all its micro-batches have been scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Each token alone.
    Token,
    /// All policy tokens of a sequence.
    Sequence,
    /// All sequences of the optimiser step.
    Step,
}

/// Where a constant branch of the loss is active: no gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clipped {
    No,
    Low,
    High,
    Dual,
}

/// One token's inputs, widened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) lp: f64,
    /// Equal to `lp` where the loss does not read it.
    pub(crate) old: f64,
    /// 0 where the loss does not read it.
    pub(crate) advantage: f64,
}

/// A term before its normaliser.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenTerm {
    pub(crate) value: f64,
    pub(crate) d_logprob: f64,
    pub(crate) clipped: Clipped,
}

/// A loss of each token alone.
pub(crate) trait TokenLoss {
    fn term(&self, token: Token) -> TokenTerm;
}

/// A loss of a sequence and its one advantage.
pub(crate) trait SequenceLoss {
    /// Returns the value and writes the derivative by each log-probability.
    fn term(&self, logprob: &[f32], advantage: f64, d_logprob: &mut [f64]) -> f64;
}

/// A surrogate by its scope. A scope's normaliser is not a choice of the loss that has it.
pub(crate) enum Kernel<'a> {
    Token(&'a dyn TokenLoss),
    Sequence(&'a dyn SequenceLoss),
}

impl Kernel<'_> {
    pub(crate) fn scope(&self) -> Scope {
        match self {
            Self::Token(_) => Scope::Token,
            Self::Sequence(_) => Scope::Sequence,
        }
    }
}
