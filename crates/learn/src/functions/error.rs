use std::fmt;

use rloom_function::FunctionError;

/// A function of an algorithm that cannot be used.
#[derive(Debug, Clone, miette::Diagnostic, thiserror::Error)]
pub enum MethodError {
    /// It failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Function(#[from] FunctionError),
    /// A normaliser that the counts of the optimiser step do not give.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Counts(#[from] rloom_algo::AlgoError),
    /// A loss whose derivatives are not those of its value.
    #[error("{function} returns wrong derivatives: {difference}")]
    #[diagnostic(help(
        "compare the sign and the factors of `d_logprob` with the returned loss; take weights that are held constant from \
         `held` instead of `logprob`"
    ))]
    Derivative {
        /// The function.
        function: String,
        /// The first difference.
        difference: LossDifference,
    },
    /// A loss of a micro-batch that depends on the division of the optimiser step.
    #[error(
        "{function} depends on the division into micro-batches: it returns a loss of {whole} for two micro-batches \
         together, and {parts} for their sum"
    )]
    #[diagnostic(help("divide by `divisor`, `tokens` or `sequences`, which count the whole optimiser step"))]
    Split {
        /// The function.
        function: String,
        /// The loss of all sequences.
        whole: f64,
        /// The sum over two micro-batches.
        parts: f64,
    },
}

/// A derivative that is not the slope of the loss.
#[derive(Debug, Clone, PartialEq)]
pub struct LossDifference {
    /// The input: `logprob` or `entropy`.
    pub by: &'static str,
    /// Index of the token among those of the checked micro-batch.
    pub token: usize,
    /// The returned derivative.
    pub returned: f64,
    /// The slope of the loss.
    pub slope: f64,
    /// Log-probability, its old value and advantage of the token.
    pub at: [f32; 3],
}

impl fmt::Display for LossDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, token, returned, slope, at: [logprob, old, advantage] } = self;
        write!(
            f,
            "d_{by}[{token}] is {returned:.6}, but the loss changes by {slope:.6} per unit of {by} there (logprob \
             {logprob}, old {old}, advantage {advantage})"
        )
    }
}
