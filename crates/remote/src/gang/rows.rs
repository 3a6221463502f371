//! Micro-batches as tensors: every sequence with its own prompt, since ranks share none.

use rloom_algo::{LossGrad, LossInputs, LossStep, TokenScores};
use rloom_core::SampleKey;
use rloom_engine::PackedBatch;
use rloom_wire::{Frame, FrameError, Tensor};

/// Tensors of micro-batch `index`.
pub(crate) fn of_batch(index: usize, batch: &PackedBatch) -> [Tensor; 4] {
    let mut tokens: Vec<u32> = Vec::with_capacity(batch.sequence_tokens());
    let mut lengths: Vec<i64> = Vec::with_capacity(batch.segments.len());
    let mut rows: Vec<i64> = Vec::with_capacity(batch.rows.len());
    let range = |segment: usize| batch.seq_starts[segment]..batch.seq_starts[segment + 1];
    for (&segment, own_rows) in batch.segments.iter().zip(&batch.sequences) {
        let first = tokens.len();
        if let Some(parent) = batch.parents[segment] {
            tokens.extend_from_slice(&batch.tokens[range(parent as usize)]);
        }
        let base = tokens.len();
        tokens.extend_from_slice(&batch.tokens[range(segment)]);
        let moved = |&row: &u32| (row as usize - batch.seq_starts[segment] + base) as i64;
        rows.extend(batch.rows[own_rows.clone()].iter().map(moved));
        lengths.push((tokens.len() - first) as i64);
    }
    [
        Tensor::new(name(index, "tokens"), &[tokens.len()], &tokens),
        Tensor::new(name(index, "lengths"), &[lengths.len()], &lengths),
        Tensor::new(name(index, "rows"), &[rows.len()], &rows),
        Tensor::new(name(index, "inv_temperature"), &[batch.inv_temperature.len()], &batch.inv_temperature),
    ]
}

/// Candidates of the scored tokens of micro-batch `index`, `[S, k]`, if it has some.
pub(crate) fn candidates(index: usize, batch: &PackedBatch) -> Option<Tensor> {
    let candidates = batch.candidates.as_ref()?;
    let shape = [candidates.positions(), candidates.k()];
    Some(Tensor::new(name(index, "candidates"), &shape, candidates.ids()))
}

/// Keys of the sequences of micro-batch `index`, which determine their noise: `[n, 3]`, each ticket, sample and segment.
pub(crate) fn keys(index: usize, batch: &PackedBatch) -> Tensor {
    let of_key = |key: &SampleKey| [key.ticket.0 as i64, i64::from(key.sample), i64::from(key.segment)];
    let keys: Vec<i64> = batch.keys.iter().flat_map(of_key).collect();
    Tensor::new(name(index, "keys"), &[batch.keys.len(), 3], &keys)
}

/// The loss as the ranks of group `group` of `groups` need it: without the inputs of the other groups' micro-batches.
pub(crate) fn loss_of_group(loss: &LossStep<'_>, group: usize, groups: usize) -> LossStep<'static> {
    let own = |(index, inputs): (usize, &LossInputs)| {
        if index % groups == group { inputs.clone() } else { LossInputs::default() }
    };
    LossStep {
        objective: loss.objective,
        counts: loss.counts,
        inputs: loss.inputs.iter().enumerate().map(own).collect(),
        noise: loss.noise,
    }
}

/// Tensors of the coefficients of micro-batch `index`.
pub(crate) fn of_grad(index: usize, grad: &LossGrad) -> [Tensor; 3] {
    [("d_logprob", &grad.d_logprob), ("d_entropy", &grad.d_entropy), ("d_value", &grad.d_value)]
        .map(|(field, values)| Tensor::new(name(index, field), &[values.len()], values))
}

/// Scores of micro-batch `index` in a rank's answer.
pub(crate) fn scores(frame: &Frame, index: usize) -> Result<TokenScores, FrameError> {
    scores_by(frame, |field| name(index, field))
}

/// Scores in tensors with these names.
pub(crate) fn scores_by(frame: &Frame, name: impl Fn(&str) -> String) -> Result<TokenScores, FrameError> {
    let field = |field| frame.tensor(&name(field))?.elements();
    Ok(TokenScores {
        logprob: field("logprob")?,
        entropy: field("entropy")?,
        value: field("value")?,
        last_value: field("last_value")?,
        divergence: field("divergence")?,
        candidate_logprob: field("candidate_logprob")?,
    })
}

/// The teacher's most probable tokens for micro-batch `index` in a rank's answer.
pub(crate) fn top(frame: &Frame, index: usize) -> Result<(usize, Vec<i32>, Vec<f32>), FrameError> {
    let ids = frame.tensor(&name(index, "ids"))?;
    let k = ids.shape.last().copied().unwrap_or_default();
    Ok((k, ids.elements()?, frame.tensor(&name(index, "logprob"))?.elements()?))
}

/// Name of a tensor of a micro-batch.
pub(crate) fn name(index: usize, field: &str) -> String {
    format!("{index}.{field}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rloom_algo::{GlobalCounts, Objective, ValueLoss};
    use rloom_core::{Author, SampleKey, Span, StopReason, Ticket, Trajectory};
    use rloom_engine::{pack, pack_unshared};

    fn trajectory(sample: u32, prompt: usize, policy: usize) -> Trajectory {
        let n = prompt + policy;
        Trajectory {
            key: SampleKey { ticket: Ticket(1), sample, segment: 0 },
            agent: None,
            tokens: (0..n as u32)
                .map(|i| if (i as usize) < prompt { i } else { 100 * (sample + 1) + i })
                .collect(),
            spans: vec![Span::new(Author::Prompt, 0..prompt), Span::new(Author::Policy, prompt..n)],
            logprobs: vec![-1.0; policy],
            versions: vec![],
            stop: StopReason::Length,
            attachments: Vec::new(),
        }
    }

    #[test]
    fn a_rank_gets_the_loss_of_its_own_micro_batches() {
        let inputs: Vec<LossInputs> = (1..=5)
            .map(|n| LossInputs { advantage: Some(vec![n as f32; 100]), ..LossInputs::default() })
            .collect();
        let objective = Objective::Value(ValueLoss { coef: 1.0, clip: None });
        let loss = LossStep::new(objective, GlobalCounts::default(), &inputs);
        let of_group = |group| loss_of_group(&loss, group, 2);
        assert_eq!((of_group(0).counts, of_group(0).inputs.len()), (loss.counts, 5));
        for (index, own) in inputs.iter().enumerate() {
            assert_eq!(&of_group(index % 2).inputs[index], own);
            assert_eq!(of_group(1 - index % 2).inputs[index], LossInputs::default());
        }
        let bytes = |loss: &LossStep<'_>| loss.to_bytes().unwrap().len();
        assert!(bytes(&of_group(0)) + bytes(&of_group(1)) < bytes(&loss) + 1000);
    }

    #[test]
    fn shared_prompts_are_repeated() {
        let all = [trajectory(0, 3, 2), trajectory(1, 3, 4), trajectory(2, 5, 1)];
        let shared = pack(&all, 100).unwrap();
        let alone = pack_unshared(&all, 100).unwrap();
        assert!(shared[0].parents.iter().any(Option::is_some));
        assert_eq!(of_batch(0, &shared[0]), of_batch(0, &alone[0]));
        let [tokens, lengths, rows, _] = of_batch(0, &shared[0]);
        assert_eq!(lengths.elements::<i64>().unwrap(), [5, 7, 6]);
        assert_eq!(rows.elements::<i64>().unwrap(), [3, 4, 8, 9, 10, 11, 17]);
        assert_eq!(tokens.elements::<u32>().unwrap()[5..9], [0, 1, 2, 203]);
    }
}
