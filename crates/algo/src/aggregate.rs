use serde::{Deserialize, Serialize};

use crate::AlgoError;

/// Counts over the *whole* optimiser step: the divisors for all its micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GlobalCounts {
    /// Policy tokens.
    pub tokens: u64,
    /// Sequences with at least one policy token.
    pub sequences: u64,
    /// Those among them that are not the first of their episode: an episode with several segments counts once as a
    /// normaliser.
    #[serde(default)]
    pub further_segments: u64,
    /// The stage's limit on the policy tokens of a sequence: the constant of [`Aggregation::ConstantLength`].
    pub completion_limit: u64,
}

impl GlobalCounts {
    /// Counts sequences, each of which is an episode, from their numbers of policy tokens. Sequences without policy tokens
    /// are not counted.
    pub fn of_lengths(lengths: impl IntoIterator<Item = usize>, completion_limit: u64) -> Self {
        let mut counts = Self { completion_limit, ..Self::default() };
        for length in lengths {
            counts.tokens += length as u64;
            counts.sequences += u64::from(length > 0);
        }
        counts
    }

    /// Episodes with at least one policy token.
    pub fn episodes(&self) -> u64 {
        self.sequences.saturating_sub(self.further_segments)
    }
}

/// Normaliser of the per-token terms of an optimiser step.
///
/// With S sequences of |y_i| policy tokens and T = Σ|y_i|, all counted over the optimiser step. No mode
/// divides by the counts of a micro-batch, because the result would depend on the split. The segments of an episode are
/// one sequence here: dividing an episode into segments changes no normaliser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Σ_i Σ_t ℓ / T: every token has the same weight (DAPO; verl's `token-mean`).
    TokenMean,
    /// 1/S Σ_i 1/|y_i| Σ_t ℓ: every sequence has the same weight (GRPO's paper; verl's `seq-mean-token-mean`).
    SequenceMean,
    /// Σ_i Σ_t ℓ / (S·L) with the constant L = the completion limit (Dr.GRPO).
    ConstantLength,
    /// 1/S Σ_i Σ_t ℓ: a sequence is one action (RLOO; verl's `seq-mean-token-sum`).
    SequenceSum,
}

impl Aggregation {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::TokenMean, Self::SequenceMean, Self::ConstantLength, Self::SequenceSum];

    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenMean => "token_mean",
            Self::SequenceMean => "sequence_mean",
            Self::ConstantLength => "constant_length",
            Self::SequenceSum => "sequence_sum",
        }
    }

    /// Divisor of a token's term in an episode of `length` policy tokens.
    pub fn divisor(self, length: usize, counts: &GlobalCounts) -> Result<f64, AlgoError> {
        let sequences = counts.episodes() as f64;
        match self {
            Self::TokenMean => Ok(counts.tokens as f64),
            Self::SequenceMean => Ok(length as f64 * sequences),
            Self::ConstantLength if counts.completion_limit == 0 => Err(AlgoError::NoCompletionLimit),
            Self::ConstantLength => Ok(sequences * counts.completion_limit as f64),
            Self::SequenceSum => Ok(sequences),
        }
    }
}
