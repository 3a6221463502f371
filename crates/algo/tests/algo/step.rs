//! An optimiser step that owns its arrays and can be split into micro-batches.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{
    AlgoError, GlobalCounts, LossBatch, LossGrad, LossMetrics, LossTerms, Mismatch, PolicyLoss, Scope,
    TokenScores, ValueLoss, policy_loss, step_loss, value_loss,
};

/// Empty arrays are not passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    pub(crate) lengths: Vec<usize>,
    pub(crate) completion_limit: u64,
    pub(crate) logprob: Vec<f32>,
    pub(crate) entropy: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) advantage: Vec<f32>,
    pub(crate) old: Vec<f32>,
    pub(crate) behavior: Vec<f32>,
    pub(crate) reference: Vec<f32>,
    pub(crate) interpolation: Vec<f32>,
    pub(crate) returns: Vec<f32>,
    pub(crate) old_value: Vec<f32>,
    /// Per sequence.
    pub(crate) outcome: Vec<f32>,
    /// Per sequence.
    pub(crate) masked: Vec<bool>,
    pub(crate) mismatch: Mismatch,
}

/// A part of an array, if it is given; of a step without tokens all arrays are.
fn given<T>(values: &[T], range: Range<usize>) -> Option<&[T]> {
    (!values.is_empty() || range.end == 0).then(|| &values[range])
}

/// 64 random bits for a position, like a counter-based stream.
pub(crate) fn draw(position: u64) -> u64 {
    let mut z = position.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Step {
    /// Sets all policies of the step to that of `logprob`.
    pub(crate) fn first(self) -> Self {
        let lp = self.logprob.clone();
        Self { old: lp.clone(), behavior: lp.clone(), reference: lp, interpolation: Vec::new(), ..self }
    }

    pub(crate) fn rows(&self, sequences: Range<usize>) -> Vec<Range<usize>> {
        let mut end = 0;
        self.lengths[sequences]
            .iter()
            .map(|n| {
                end += n;
                end - n..end
            })
            .collect()
    }

    pub(crate) fn counts(&self) -> GlobalCounts {
        GlobalCounts::of_lengths(self.lengths.iter().copied(), self.completion_limit)
    }

    /// The flat index of a sequence's first token.
    pub(crate) fn start(&self, sequence: usize) -> usize {
        self.lengths[..sequence].iter().sum()
    }

    fn tokens_of(&self, sequences: &Range<usize>) -> Range<usize> {
        self.start(sequences.start)..self.start(sequences.end)
    }

    pub(crate) fn batch<'a>(&'a self, rows: &'a [Range<usize>], sequences: Range<usize>) -> LossBatch<'a> {
        let t = self.tokens_of(&sequences);
        LossBatch {
            rows,
            masked: given(&self.masked, sequences.clone()).unwrap_or_default(),
            episode_tokens: &[],
            advantage: given(&self.advantage, t.clone()),
            old_logprob: given(&self.old, t.clone()),
            behavior_logprob: given(&self.behavior, t.clone()),
            reference_logprob: given(&self.reference, t.clone()),
            sharpened_logprob: None,
            interpolation: given(&self.interpolation, t.clone()),
            returns: given(&self.returns, t.clone()),
            old_value: given(&self.old_value, t),
            outcome: given(&self.outcome, sequences),
            margin: None,
            steps: &[],
            teacher: None,
            given: None,
            mismatch: self.mismatch,
        }
    }

    pub(crate) fn scores(&self, sequences: Range<usize>) -> TokenScores {
        let t = self.tokens_of(&sequences);
        let part = |values: &[f32]| given(values, t.clone()).unwrap_or_default().to_vec();
        TokenScores {
            logprob: part(&self.logprob),
            entropy: part(&self.entropy),
            value: part(&self.value),
            ..TokenScores::default()
        }
    }

    /// The whole step at once.
    pub(crate) fn loss(&self, loss: &PolicyLoss) -> Result<LossGrad, AlgoError> {
        if loss.scope() == Scope::Step {
            let whole = 0..self.lengths.len();
            let mut grads = self.parts(loss, &[whole], &draw)?;
            return Ok(grads.remove(0));
        }
        self.part(loss, 0..self.lengths.len())
    }

    /// A micro-batch of consecutive sequences, with the counts of the whole step.
    pub(crate) fn part(&self, loss: &PolicyLoss, sequences: Range<usize>) -> Result<LossGrad, AlgoError> {
        let rows = self.rows(sequences.clone());
        let batch = self.batch(&rows, sequences.clone());
        policy_loss(loss, &batch, &self.scores(sequences), &self.counts())
    }

    /// All micro-batches of the step.
    pub(crate) fn parts(
        &self,
        loss: &PolicyLoss,
        pieces: &[Range<usize>],
        draw: &dyn Fn(u64) -> u64,
    ) -> Result<Vec<LossGrad>, AlgoError> {
        let rows: Vec<_> = pieces.iter().map(|piece| self.rows(piece.clone())).collect();
        let batches: Vec<_> =
            rows.iter().zip(pieces).map(|(rows, piece)| self.batch(rows, piece.clone())).collect();
        let scores: Vec<_> = pieces.iter().map(|piece| self.scores(piece.clone())).collect();
        step_loss(loss, &batches, &scores, &self.counts(), draw)
    }

    /// A micro-batch of a separate critic.
    pub(crate) fn critic(&self, spec: &ValueLoss, sequences: Range<usize>) -> Result<LossGrad, AlgoError> {
        let rows = self.rows(sequences.clone());
        let scores = TokenScores { value: self.scores(sequences.clone()).value, ..TokenScores::default() };
        value_loss(spec, &self.batch(&rows, sequences), &scores, &self.counts())
    }

    /// The metrics of the whole step.
    pub(crate) fn metrics(&self, loss: &PolicyLoss) -> LossMetrics {
        self.loss(loss).unwrap().terms.finish(&self.counts()).unwrap()
    }
}

/// Merged terms of a step's micro-batches; also checks that merging empty terms changes nothing.
pub(crate) fn merged<'a>(parts: impl IntoIterator<Item = &'a LossTerms>) -> LossTerms {
    let mut merged = LossTerms::default();
    for part in parts {
        merged.merge(part);
    }
    merged.merge(&LossTerms::default());
    merged
}

/// lp, old − lp, beh − old, ref − lp, entropy, value, V_old − V, R − V, α.
type Token = (f32, f32, f32, f32, f32, f32, f32, f32, f32);

/// Steps of up to eight sequences with the inputs of all losses; some sequences have no policy tokens.
pub(crate) fn steps() -> impl Strategy<Value = Step> {
    let sequence = prop_oneof![1 => Just(0usize), 1 => Just(1usize), 5 => 1usize..7];
    (prop::collection::vec(sequence, 1..9), 7u64..64).prop_flat_map(|(lengths, completion_limit)| {
        let tokens = lengths.iter().sum::<usize>();
        let near = -0.9f32..0.9;
        let token = (
            -6.0f32..-0.001,
            near.clone(),
            near.clone(),
            near,
            0.0f32..4.0,
            -2.0f32..2.0,
            -0.6f32..0.6,
            -1.5f32..1.5,
            0.0f32..1.0,
        );
        let row = (
            prop_oneof![1 => Just(0.0f32), 6 => -3.0f32..3.0],
            prop_oneof![Just(0.0f32), Just(1.0), 0.0f32..1.0],
            prop::bool::weighted(0.2),
        );
        let rows = prop::collection::vec(row, lengths.len());
        (prop::collection::vec(token, tokens), rows)
            .prop_map(move |(tokens, rows)| step(lengths.clone(), completion_limit, &tokens, &rows))
    })
}

fn step(lengths: Vec<usize>, completion_limit: u64, tokens: &[Token], rows: &[(f32, f32, bool)]) -> Step {
    let of = |get: fn(&Token) -> f32| tokens.iter().map(get).collect::<Vec<f32>>();
    // Log-probabilities stay at most 0.
    let probability = |x: f32| x.min(-0.001);
    Step {
        completion_limit,
        logprob: of(|t| t.0),
        old: tokens.iter().map(|t| probability(t.0 + t.1)).collect(),
        behavior: tokens.iter().map(|t| probability(probability(t.0 + t.1) + t.2)).collect(),
        reference: of(|t| t.0 + t.3),
        entropy: of(|t| t.4),
        value: of(|t| t.5),
        old_value: of(|t| t.5 + t.6),
        returns: of(|t| t.5 + t.7),
        interpolation: of(|t| t.8),
        advantage: lengths.iter().zip(rows).flat_map(|(&n, row)| std::iter::repeat_n(row.0, n)).collect(),
        outcome: rows.iter().map(|row| row.1).collect(),
        masked: rows.iter().map(|row| row.2).collect(),
        mismatch: Mismatch::Old,
        lengths,
    }
}
