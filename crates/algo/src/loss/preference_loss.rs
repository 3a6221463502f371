use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    LossBatch, LossGrad, LossTerms, Scope, TokenScores,
    inputs::{Inputs, Wide, rounded},
    step_loss::within,
};
use crate::preference::kernel::{Completion, Term, Unit};
use crate::{AlgoError, GlobalCounts, Preference};

/// The preference loss of an optimiser step: a mean over pairs, or over completions with labels.
///
/// The outcome of a row is 1 for a chosen or desirable completion and 0 for a rejected or undesirable one. In pairs the rows
/// alternate, the chosen one first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PreferenceLoss {
    /// The loss.
    pub preference: Preference,
    /// Value of its [`Anchor`](crate::Anchor) in this step; 0 if it has none.
    pub anchor: f64,
}

/// Value and coefficients of a micro-batch that holds whole pairs.
///
/// Rows, masks, counts and errors are as in [`policy_loss`](crate::policy_loss). Reads the outcomes and, if the loss uses them,
/// the log-probabilities of the reference and those at half the temperature. A pair with a masked row is masked as a whole.
pub fn preference_loss(
    loss: &PreferenceLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
) -> Result<LossGrad, AlgoError> {
    if loss.preference.scope() == Scope::Step {
        return Err(AlgoError::StepScope);
    }
    let rows = Rows::read(loss, batch, scores)?;
    let terms = loss.terms(&rows.completions);
    rows.grad(loss, &terms, scores, counts)
}

/// [`preference_loss`] of every micro-batch of an optimiser step, for a loss of any scope.
pub fn preference_step(
    loss: &PreferenceLoss,
    batches: &[LossBatch<'_>],
    scores: &[TokenScores],
    counts: &GlobalCounts,
) -> Result<Vec<LossGrad>, AlgoError> {
    if batches.len() != scores.len() {
        return Err(AlgoError::MicroBatches { batches: batches.len(), scores: scores.len() });
    }
    let mut all = Vec::with_capacity(batches.len());
    for (micro_batch, (batch, scores)) in batches.iter().zip(scores).enumerate() {
        all.push(Rows::read(loss, batch, scores).map_err(within(micro_batch))?);
    }
    let completions: Vec<Completion> = all.iter().flat_map(|rows| &rows.completions).copied().collect();
    let terms = loss.terms(&completions);
    let mut start = 0;
    let mut grads = Vec::with_capacity(all.len());
    for (micro_batch, (rows, scores)) in all.iter().zip(scores).enumerate() {
        let own = &terms[start..start + rows.completions.len()];
        start += own.len();
        grads.push(rows.grad(loss, own, scores, counts).map_err(within(micro_batch))?);
    }
    Ok(grads)
}

impl PreferenceLoss {
    /// Terms of completions of whole units.
    fn terms(&self, completions: &[Completion]) -> Vec<Term> {
        let kernel = self.preference.kernel();
        let mut terms = vec![Term::default(); completions.len()];
        let unit = match kernel.unit() {
            Unit::Completion => 1,
            Unit::Pair => 2,
            Unit::Step => completions.len().max(1),
        };
        for (completions, terms) in completions.chunks(unit).zip(terms.chunks_mut(unit)) {
            kernel.terms(completions, self.anchor, terms);
        }
        terms
    }
}

/// The rows of a micro-batch that are trained.
struct Rows<'a> {
    inputs: Inputs<'a>,
    /// Index of each row and number of its tokens with the full weight.
    trained: Vec<(usize, usize)>,
    completions: Vec<Completion>,
}

impl<'a> Rows<'a> {
    fn read(
        loss: &PreferenceLoss,
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
    ) -> Result<Self, AlgoError> {
        let inputs = Inputs::of_preference(&loss.preference, batch, scores)?;
        let kernel = loss.preference.kernel();
        let in_pairs = kernel.unit() != Unit::Completion;
        if in_pairs {
            check_pairs(batch)?;
        }
        let mut wide = Wide::default();
        let (mut trained, mut completions) = (Vec::new(), Vec::new());
        for (index, range) in inputs.rows.iter().enumerate() {
            inputs.check_row(index, range)?;
            let partner = if in_pairs { index ^ 1 } else { index };
            if range.is_empty() || inputs.is_masked(index) || inputs.is_masked(partner) {
                continue;
            }
            let row = wide.row(&inputs, index, range, &[]);
            let full = row.len().min(inputs.rows[partner].len());
            let sum = |of: &[f64]| {
                of[..full].iter().sum::<f64>() + kernel.tail_weight() * of[full..].iter().sum::<f64>()
            };
            completions.push(Completion {
                lp: sum(row.lp),
                reference: sum(row.reference),
                sharpened: inputs.sharpened.map_or_else(
                    || sum(row.lp),
                    |of| of[range.clone()].iter().map(|&lp| f64::from(lp)).sum(),
                ),
                tokens: row.len() as f64,
                is_desirable: row.outcome > 0.5,
            });
            trained.push((index, full));
        }
        Ok(Self { inputs, trained, completions })
    }

    /// Coefficients of the micro-batch from the terms of its trained rows.
    fn grad(
        &self,
        loss: &PreferenceLoss,
        terms: &[Term],
        scores: &TokenScores,
        counts: &GlobalCounts,
    ) -> Result<LossGrad, AlgoError> {
        let kernel = loss.preference.kernel();
        let in_pairs = kernel.unit() != Unit::Completion;
        let tokens = scores.logprob.len();
        let mut grad = LossGrad {
            d_logprob: vec![0.0; tokens],
            d_entropy: vec![0.0; tokens],
            d_value: vec![0.0; scores.value.len()],
            d_last_value: Vec::new(),
            terms: LossTerms::of_preference(
                loss.preference.anchor().filter(|anchor| anchor.is_log_ratio()).map(|_| loss.anchor),
            ),
            ..LossGrad::default()
        };
        for (index, range) in self.inputs.rows.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let is_masked = self.inputs.is_masked(index);
            grad.terms.count_sequence(range.len(), self.inputs.has_mask().then_some(is_masked), counts)?;
            self.inputs.observe_mismatch(range, &mut grad.terms);
        }
        let divisor = counts.sequences as f64 / if in_pairs { 2.0 } else { 1.0 };
        let mut wide = Wide::default();
        for ((&(index, full), term), completion) in self.trained.iter().zip(terms).zip(&self.completions) {
            let range: &Range<usize> = &self.inputs.rows[index];
            grad.terms.add_surrogate(term.value / divisor);
            grad.terms.observe_completion(completion.is_desirable, kernel.reward(completion), completion.lp);
            let row = wide.row(&self.inputs, index, range, &[]);
            for t in 0..range.len() {
                let weight = if t < full { 1.0 } else { kernel.tail_weight() };
                grad.d_logprob[range.start + t] = rounded(weight * term.slope / divisor, index, t)?;
                grad.terms.observe_entropy(f64::from(self.inputs.entropy[range.start + t]));
                self.inputs.observe(&row, t, &mut grad.terms);
            }
        }
        if in_pairs {
            for pair in self.completions.chunks_exact(2) {
                grad.terms.observe_pair(kernel.reward(&pair[0]) > kernel.reward(&pair[1]));
            }
        }
        Ok(grad)
    }
}

/// Checks that the rows alternate between chosen and rejected completions, which have policy tokens.
pub(super) fn check_pairs(batch: &LossBatch<'_>) -> Result<(), AlgoError> {
    let outcomes = batch.outcome.unwrap_or_default();
    let expected = |row: usize| if row.is_multiple_of(2) { 1.0 } else { 0.0 };
    let is_wrong = |&(row, &outcome): &(usize, &f32)| outcome != expected(row) || batch.rows[row].is_empty();
    match outcomes.iter().enumerate().find(is_wrong) {
        Some((row, _)) => Err(AlgoError::NotPaired { row }),
        None if outcomes.len() % 2 == 1 => Err(AlgoError::NotPaired { row: outcomes.len() - 1 }),
        None => Ok(()),
    }
}
