use std::ops::Range;

use super::{
    LossBatch, LossGrad, LossTerms, Mismatch, PolicyLoss, TokenScores,
    kernel::{Kernel, Token},
};
use crate::{AlgoError, GlobalCounts, KlEstimator, Level, Score};

/// Value and coefficients of a micro-batch.
///
/// Pure. The coefficients of a sequence depend on that sequence and on `counts` alone, so any split of the optimiser
/// step into micro-batches gives the same bits. An empty batch and empty rows are fine and give nothing.
///
/// # Errors
///
/// Arrays of wrong length, rows that do not tile them, a missing input that the loss reads, NaN or infinity (naming
/// row and token), or counts smaller than the batch itself.
pub fn policy_loss(
    loss: &PolicyLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
) -> Result<LossGrad, AlgoError> {
    let inputs = Inputs::check(loss, batch, scores)?;
    let tokens = scores.logprob.len();
    let mut grad = LossGrad {
        d_logprob: vec![0.0; tokens],
        d_entropy: vec![0.0; tokens],
        d_value: vec![0.0; scores.value.len()],
        terms: LossTerms::for_loss(loss),
    };
    let mut surrogate = Vec::new();
    for (row, range) in batch.rows.iter().enumerate() {
        if range.is_empty() {
            continue;
        }
        inputs.check_finite(row, range)?;
        let terms = &mut grad.terms;
        terms.count_sequence(range.len(), counts)?;
        let divisor = loss.aggregation.divisor(range.len(), counts)?;
        surrogate.clear();
        surrogate.resize(range.len(), 0.0);
        let surrogate_divisor = match loss.surrogate.kernel() {
            Kernel::Token(kernel) => {
                for (d, i) in surrogate.iter_mut().zip(range.clone()) {
                    let term = kernel.term(inputs.token(i));
                    *d = term.d_logprob;
                    terms.add_surrogate(term.value / divisor);
                    terms.count_clipped(term.clipped);
                }
                divisor
            }
            Kernel::Sequence(kernel) => {
                let advantage = inputs.sequence_advantage(row, range)?;
                let value = kernel.term(&inputs.logprob[range.clone()], advantage, &mut surrogate);
                let sequences = counts.sequences as f64;
                terms.add_surrogate(value / sequences);
                sequences
            }
        };
        for (d, i) in surrogate.iter().zip(range.clone()) {
            let mut coefficient = d / surrogate_divisor;
            if let (Some(kl), Some(reference)) = (loss.kl, inputs.reference) {
                let (value, slope) =
                    kl.estimator.value_and_gradient(f64::from(inputs.logprob[i]), f64::from(reference[i]));
                coefficient += kl.coef * slope / divisor;
                terms.add_kl_loss(kl.coef * value / divisor);
            }
            if loss.entropy_coef != 0.0 {
                terms.add_entropy_loss(-loss.entropy_coef * f64::from(inputs.entropy[i]) / divisor);
                grad.d_entropy[i] = (-loss.entropy_coef / divisor) as f32;
            }
            // Adding 0 turns −0, the gradient of a zero advantage, into 0.
            let rounded = (coefficient + 0.0) as f32;
            if !rounded.is_finite() {
                let token = i - range.start;
                return Err(AlgoError::NonFinite {
                    what: Score::Coefficient,
                    row,
                    token,
                    value: coefficient,
                });
            }
            grad.d_logprob[i] = rounded;
            inputs.observe(terms, i);
        }
    }
    Ok(grad)
}

/// The arrays of a batch, of equal length.
struct Inputs<'a> {
    logprob: &'a [f32],
    entropy: &'a [f32],
    advantage: Option<&'a [f32]>,
    old: Option<&'a [f32]>,
    behavior: Option<&'a [f32]>,
    reference: Option<&'a [f32]>,
    mismatch: Mismatch,
}

impl<'a> Inputs<'a> {
    fn check(loss: &PolicyLoss, batch: &LossBatch<'a>, scores: &'a TokenScores) -> Result<Self, AlgoError> {
        let tokens = scores.logprob.len();
        let mut end = 0;
        for (row, range) in batch.rows.iter().enumerate() {
            if range.start != end || range.end < range.start {
                return Err(AlgoError::Rows { row, start: range.start, end: range.end, expected: end });
            }
            end = range.end;
        }
        if end != tokens {
            return Err(AlgoError::Rows { row: batch.rows.len(), start: end, end, expected: tokens });
        }
        let inputs = Self {
            logprob: &scores.logprob,
            entropy: &scores.entropy,
            advantage: batch.advantage,
            old: batch.old_logprob,
            behavior: batch.behavior_logprob,
            reference: batch.reference_logprob,
            mismatch: batch.mismatch,
        };
        for (what, values) in inputs.arrays() {
            if let Some(values) = values.filter(|v| v.len() != tokens) {
                return Err(AlgoError::Length { what, got: values.len(), expected: tokens });
            }
        }
        for (what, needed, given) in [
            (Score::Advantage, loss.surrogate.reads_advantage(), inputs.advantage),
            (Score::OldLogprob, loss.surrogate.has_ratio(), inputs.old),
            (Score::ReferenceLogprob, loss.kl.is_some(), inputs.reference),
            (Score::BehaviorLogprob, batch.mismatch != Mismatch::Unmeasured, inputs.behavior),
            (Score::OldLogprob, batch.mismatch == Mismatch::Old, inputs.old),
        ] {
            if needed && given.is_none() {
                return Err(AlgoError::Missing { what });
            }
        }
        Ok(inputs)
    }

    fn arrays(&self) -> [(Score, Option<&'a [f32]>); 6] {
        [
            (Score::Logprob, Some(self.logprob)),
            (Score::Entropy, Some(self.entropy)),
            (Score::Advantage, self.advantage),
            (Score::OldLogprob, self.old),
            (Score::BehaviorLogprob, self.behavior),
            (Score::ReferenceLogprob, self.reference),
        ]
    }

    fn check_finite(&self, row: usize, range: &Range<usize>) -> Result<(), AlgoError> {
        for (what, values) in self.arrays() {
            let Some(values) = values else { continue };
            if let Some(token) = values[range.clone()].iter().position(|v| !v.is_finite()) {
                let value = f64::from(values[range.start + token]);
                return Err(AlgoError::NonFinite { what, row, token, value });
            }
        }
        Ok(())
    }

    fn token(&self, i: usize) -> Token {
        let lp = f64::from(self.logprob[i]);
        Token {
            lp,
            old: self.old.map_or(lp, |old| f64::from(old[i])),
            advantage: self.advantage.map_or(0.0, |a| f64::from(a[i])),
        }
    }

    fn sequence_advantage(&self, row: usize, range: &Range<usize>) -> Result<f64, AlgoError> {
        let Some(advantage) = self.advantage else { return Ok(0.0) };
        let advantage = &advantage[range.clone()];
        match advantage.iter().position(|&a| a != advantage[0]) {
            Some(token) => Err(AlgoError::UnevenAdvantage { row, token, level: Level::Sequence }),
            None => Ok(f64::from(advantage[0])),
        }
    }

    /// Sums for the metrics, of which no coefficient depends.
    fn observe(&self, terms: &mut LossTerms, i: usize) {
        let lp = f64::from(self.logprob[i]);
        terms.observe_entropy(f64::from(self.entropy[i]));
        if let Some(old) = self.old {
            terms.observe_log_ratio(lp - f64::from(old[i]));
        }
        if let Some(reference) = self.reference {
            terms.observe_kl(KlEstimator::K3.value_and_gradient(lp, f64::from(reference[i])).0);
        }
        let trainer = match self.mismatch {
            Mismatch::Unmeasured => None,
            Mismatch::Scores => Some(lp),
            Mismatch::Old => self.old.map(|old| f64::from(old[i])),
        };
        if let (Some(trainer), Some(behavior)) = (trainer, self.behavior) {
            terms.observe_mismatch(trainer, f64::from(behavior[i]));
        }
    }
}
