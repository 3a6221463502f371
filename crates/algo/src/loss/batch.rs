//! Arrays of a micro-batch: the scores that a loss reads, its other inputs, and its derivatives.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{LossTerms, StepLabel, TeacherTop};

/// Scores of each policy token of a micro-batch from the training engine, flat over its rows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenScores {
    /// log p(token | what precedes it) at the token's sampling temperature (nats).
    pub logprob: Vec<f32>,
    /// Entropy of the same distribution over the whole vocabulary (nats).
    pub entropy: Vec<f32>,
    /// The value head's output: the value of the prefix before the token; empty without one.
    pub value: Vec<f32>,
    /// Per sequence: the value after its last token, from which a truncated episode bootstraps; empty without a value
    /// head.
    pub last_value: Vec<f32>,
    /// Log-probabilities of k requested token ids per scored position, position by position (`[S, k]`); empty if none
    /// were requested.
    pub candidate_logprob: Vec<f32>,
    /// Divergence of the predicted distribution from the teacher's (nats); empty unless the loss is one over the whole
    /// vocabulary.
    pub divergence: Vec<f32>,
}

/// The trainer's log-probabilities that are compared with the sampler's. If both come from the same weights, the
/// difference is between two engines; for stale samples it also includes their age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mismatch {
    /// Not compared.
    #[default]
    Unmeasured,
    /// The scores themselves, in the first optimiser step of a batch.
    Scores,
    /// The recomputed `old_logprob`.
    Old,
}

/// Inputs of a micro-batch, which contains whole sequences, without the scores.
///
/// Per-token arrays are flat over the rows' policy tokens. An array that the loss does not read may be `None`; a
/// missing one that it reads is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct LossBatch<'a> {
    /// Policy tokens of each sequence in the flat arrays: in order, without gaps; empty for sequences without any.
    pub rows: &'a [Range<usize>],
    /// Rows excluded from training: their coefficients are 0, but they still count. Empty if none are.
    pub masked: &'a [bool],
    /// Policy tokens of the whole episode of each row. Empty if each row is an episode of its own.
    pub episode_tokens: &'a [usize],
    /// Advantage of each token; `None` for supervised losses.
    pub advantage: Option<&'a [f32]>,
    /// Log-probabilities of the proximal policy, before the batch's first optimiser step; `None` for supervised losses.
    pub old_logprob: Option<&'a [f32]>,
    /// The sampler's log-probabilities.
    pub behavior_logprob: Option<&'a [f32]>,
    /// The reference model's log-probabilities.
    pub reference_logprob: Option<&'a [f32]>,
    /// The policy's log-probabilities at half the temperature, from the weights before the optimiser step.
    pub sharpened_logprob: Option<&'a [f32]>,
    /// α of each token where the proximal policy is interpolated: old = beh + α(lp − beh), held constant
    /// ([`interpolation`](crate::interpolation())). Replaces `old_logprob`.
    pub interpolation: Option<&'a [f32]>,
    /// Target of each token's value ([`crate::Advantages::returns`]).
    pub returns: Option<&'a [f32]>,
    /// The value of each token before the batch's first optimiser step.
    pub old_value: Option<&'a [f32]>,
    /// Per row: the outcome, 0 to 1, that [`ImplicitReward`](crate::losses::ImplicitReward) learns from.
    pub outcome: Option<&'a [f32]>,
    /// Per row: the margin of a pair on its chosen row, for a reward model; `None` if there are none.
    pub margin: Option<&'a [f32]>,
    /// Per row: the labelled steps, for a process-reward model.
    pub steps: &'a [Vec<StepLabel>],
    /// The teacher's log-probabilities of the batch's candidates.
    pub teacher: Option<&'a TeacherTop>,
    /// Value and coefficients of a surrogate that is computed elsewhere ([`Python`](crate::losses::Python)).
    pub given: Option<&'a GivenLoss>,
    /// The log-probabilities that `behavior_logprob` is compared with.
    pub mismatch: Mismatch,
}

/// Value of a surrogate over a micro-batch and its derivatives, already normalised, computed elsewhere from the scores.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GivenLoss {
    /// The micro-batch's part of the surrogate.
    pub value: f64,
    /// Derivative by each log-probability.
    pub d_logprob: Vec<f64>,
    /// Derivative by each entropy.
    pub d_entropy: Vec<f64>,
}

impl GivenLoss {
    /// True if the coefficients of these tokens are 0.
    pub(super) fn is_zero(&self, tokens: &Range<usize>) -> bool {
        let zero = |d: &[f64]| d.get(tokens.clone()).is_some_and(|own| own.iter().all(|&d| d == 0.0));
        zero(&self.d_logprob) && zero(&self.d_entropy)
    }
}

/// The derivative of the loss by each score, and the sums behind the metrics.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LossGrad {
    /// By each log-probability.
    pub d_logprob: Vec<f32>,
    /// By each entropy.
    pub d_entropy: Vec<f32>,
    /// By each value; empty without a value head.
    pub d_value: Vec<f32>,
    /// By the value after the last token of each sequence; empty if none has a derivative.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub d_last_value: Vec<f32>,
    /// By each divergence from the teacher; empty unless the scores have them. Then there are no derivatives by
    /// log-probabilities and entropies.
    pub d_divergence: Vec<f32>,
    /// By each candidate's log-probability; empty unless the loss reads them. Then there are no derivatives by
    /// log-probabilities and entropies.
    pub d_candidate_logprob: Vec<f32>,
    /// Sums to merge over the micro-batches of the optimiser step.
    pub terms: LossTerms,
}
