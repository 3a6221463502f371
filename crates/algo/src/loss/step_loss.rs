use super::{
    LossBatch, LossGrad, PolicyLoss, Scope, TokenScores,
    inputs::{Inputs, Wide},
    kernel::StepToken,
    policy_loss::of_micro_batch,
};
use crate::{AlgoError, GlobalCounts};

/// [`policy_loss`](crate::policy_loss) of every micro-batch of an optimiser step, for a loss of any scope.
///
/// A loss of [`Scope::Step`] first selects tokens from the whole step: by position, by statistics over the step, and by
/// `draw`, which returns 64 random bits for the index of a token among all policy tokens of the step
/// ([`RandomStream::bits`](rloom_core::RandomStream::bits) of a stream of the optimiser step alone).
/// So the result does not depend on the split into micro-batches. Masked rows are never picked.
///
/// # Errors
///
/// Errors of `policy_loss`, wrapped in [`AlgoError::InMicroBatch`]; also if the number of scores is not that of
/// micro-batches.
pub fn step_loss(
    loss: &PolicyLoss,
    batches: &[LossBatch<'_>],
    scores: &[TokenScores],
    counts: &GlobalCounts,
    draw: &dyn Fn(u64) -> u64,
) -> Result<Vec<LossGrad>, AlgoError> {
    if batches.len() != scores.len() {
        return Err(AlgoError::MicroBatches { batches: batches.len(), scores: scores.len() });
    }
    let picked = match loss.scope() {
        Scope::Step => pick(loss, batches, scores, draw)?,
        Scope::Token | Scope::Sequence | Scope::Pair => Vec::new(),
    };
    let mut start = 0;
    let mut grads = Vec::with_capacity(batches.len());
    for (micro_batch, (batch, scores)) in batches.iter().zip(scores).enumerate() {
        let end = start + scores.logprob.len();
        let picked = picked.get(start..end).unwrap_or_default();
        grads.push(of_micro_batch(loss, batch, scores, counts, picked).map_err(within(micro_batch))?);
        start = end;
    }
    Ok(grads)
}

pub(super) fn within(micro_batch: usize) -> impl Fn(AlgoError) -> AlgoError {
    move |error| AlgoError::InMicroBatch { micro_batch, error: Box::new(error) }
}

/// Marks the selected policy tokens of the step.
fn pick(
    loss: &PolicyLoss,
    batches: &[LossBatch<'_>],
    scores: &[TokenScores],
    draw: &dyn Fn(u64) -> u64,
) -> Result<Vec<bool>, AlgoError> {
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut wide = Wide::default();
    for (micro_batch, (batch, scores)) in batches.iter().zip(scores).enumerate() {
        let inputs = Inputs::of_policy(loss, batch, scores).map_err(within(micro_batch))?;
        for (index, range) in inputs.rows.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            inputs.check_row(index, range).map_err(within(micro_batch))?;
            if inputs.is_masked(index) {
                continue;
            }
            let row = wide.row(&inputs, index, range, &[]);
            tokens.extend((0..row.len()).map(|t| StepToken {
                position: (start + range.start + t) as u64,
                log_ratio: row.log_ratio(t),
                old: row.old[t],
                advantage: row.advantage[t],
            }));
        }
        start += scores.logprob.len();
    }
    let mut picked = vec![false; start];
    for position in loss.surrogate.kernel().pick(&tokens, draw) {
        picked[position as usize] = true;
    }
    Ok(picked)
}
