//! An optimiser step that owns its arrays, to be cut into micro-batches.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{
    Aggregation, AlgoError, GlobalCounts, KlEstimator, KlLoss, Level, LossBatch, LossGrad, Mismatch,
    PolicyLoss, PpoClip, Reinforce, Sft, Surrogate, TokenScores, policy_loss,
};

#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    pub(crate) lengths: Vec<usize>,
    pub(crate) completion_limit: u64,
    pub(crate) logprob: Vec<f32>,
    pub(crate) entropy: Vec<f32>,
    pub(crate) advantage: Vec<f32>,
    pub(crate) old: Vec<f32>,
    pub(crate) reference: Vec<f32>,
}

impl Step {
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

    /// The whole step at once.
    pub(crate) fn loss(&self, loss: &PolicyLoss) -> Result<LossGrad, AlgoError> {
        self.part(loss, 0..self.lengths.len())
    }

    /// A micro-batch of consecutive sequences, with the counts of the whole step.
    pub(crate) fn part(&self, loss: &PolicyLoss, sequences: Range<usize>) -> Result<LossGrad, AlgoError> {
        let start: usize = self.lengths[..sequences.start].iter().sum();
        let tokens: usize = self.lengths[sequences.clone()].iter().sum();
        let flat = start..start + tokens;
        let rows = self.rows(sequences);
        let supervised = !loss.surrogate.reads_advantage();
        let old = &self.old[flat.clone()];
        let batch = LossBatch {
            rows: &rows,
            advantage: (!supervised).then_some(&self.advantage[flat.clone()]),
            old_logprob: (!supervised).then_some(old),
            behavior_logprob: (!supervised).then_some(old),
            reference_logprob: Some(&self.reference[flat.clone()]),
            mismatch: if supervised { Mismatch::Unmeasured } else { Mismatch::Scores },
        };
        let scores = TokenScores {
            logprob: self.logprob[flat.clone()].to_vec(),
            entropy: self.entropy[flat].to_vec(),
            value: Vec::new(),
        };
        policy_loss(loss, &batch, &scores, &self.counts())
    }

    /// The flat token index of a sequence's first token.
    pub(crate) fn start(&self, sequence: usize) -> usize {
        self.lengths[..sequence].iter().sum()
    }
}

/// Every surrogate × aggregation, with and without KL and entropy.
pub(crate) fn losses() -> Vec<PolicyLoss> {
    let mut losses = Vec::new();
    for surrogate in [
        Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 0.28, dual_clip: None }),
        Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(2.0) }),
        Surrogate::Reinforce(Reinforce { level: Level::Token }),
        Surrogate::Reinforce(Reinforce { level: Level::Sequence }),
        Surrogate::Sft(Sft),
    ] {
        for aggregation in Aggregation::ALL {
            for (kl, entropy_coef) in [
                (None, 0.0),
                (Some(KlLoss { coef: 0.1, estimator: KlEstimator::K2 }), 0.0),
                (Some(KlLoss { coef: 0.04, estimator: KlEstimator::K3 }), 0.01),
            ] {
                losses.push(PolicyLoss { surrogate, aggregation, kl, entropy_coef });
            }
        }
    }
    losses
}

/// Steps of up to eight sequences, some of them without any policy token.
pub(crate) fn steps() -> impl Strategy<Value = Step> {
    let sequence = prop_oneof![1 => Just(0usize), 5 => 1usize..7];
    (prop::collection::vec(sequence, 1..9), 7u64..64).prop_flat_map(|(lengths, completion_limit)| {
        let tokens = lengths.iter().sum::<usize>();
        let token = (-6.0f32..-0.001, -1.5f32..1.5, -1.5f32..1.5, 0.0f32..4.0);
        let per_row = prop::collection::vec(prop_oneof![1 => Just(0.0f32), 6 => -3.0f32..3.0], lengths.len());
        (prop::collection::vec(token, tokens), per_row).prop_map(move |(tokens, per_row)| {
            let advantage =
                lengths.iter().zip(per_row).flat_map(|(&n, a)| std::iter::repeat_n(a, n)).collect();
            Step {
                lengths: lengths.clone(),
                completion_limit,
                logprob: tokens.iter().map(|t| t.0).collect(),
                old: tokens.iter().map(|t| t.0 - t.1).collect(),
                reference: tokens.iter().map(|t| t.0 - t.2).collect(),
                entropy: tokens.iter().map(|t| t.3).collect(),
                advantage,
            }
        })
    })
}
