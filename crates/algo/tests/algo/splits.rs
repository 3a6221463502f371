//! Micro-batches: results are bitwise identical for any split of an optimiser step.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{LossGrad, PolicyLoss, Scope, ValueLoss};

use crate::{
    losses::losses,
    step::{Step, draw, merged, steps},
};

fn bits<'a>(values: impl IntoIterator<Item = &'a f32>) -> Vec<u32> {
    values.into_iter().map(|v| v.to_bits()).collect()
}

/// Cuts after the sequences whose bit is set.
fn pieces(sequences: usize, cuts: u16) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut pieces = Vec::new();
    for end in 1..=sequences {
        if end == sequences || cuts >> end & 1 == 1 {
            pieces.push(start..end);
            start = end;
        }
    }
    pieces
}

/// Compares micro-batches with the whole step, bitwise.
fn compare(step: &Step, whole: &LossGrad, parts: &[LossGrad], backwards: bool) -> Result<(), TestCaseError> {
    prop_assert_eq!(bits(parts.iter().flat_map(|g| &g.d_logprob)), bits(&whole.d_logprob));
    prop_assert_eq!(bits(parts.iter().flat_map(|g| &g.d_entropy)), bits(&whole.d_entropy));
    prop_assert_eq!(bits(parts.iter().flat_map(|g| &g.d_value)), bits(&whole.d_value));
    let mut terms: Vec<_> = parts.iter().map(|g| &g.terms).collect();
    if backwards {
        terms.reverse();
    }
    let counts = step.counts();
    let (merged, whole) = (merged(terms).finish(&counts).unwrap(), whole.terms.finish(&counts).unwrap());
    prop_assert_eq!(format!("{merged:?}"), format!("{whole:?}"));
    for ((name, a), (_, b)) in merged.named().into_iter().zip(whole.named()) {
        prop_assert_eq!(a.to_bits(), b.to_bits(), "{}", name);
    }
    Ok(())
}

fn check(step: &Step, loss: &PolicyLoss, cuts: u16, backwards: bool) -> Result<(), TestCaseError> {
    let pieces = pieces(step.lengths.len(), cuts);
    let whole = step.loss(loss).unwrap();
    compare(step, &whole, &step.parts(loss, &pieces, &draw).unwrap(), backwards)?;
    if loss.scope() == Scope::Step {
        return Ok(());
    }
    let alone: Vec<LossGrad> = pieces.into_iter().map(|piece| step.part(loss, piece).unwrap()).collect();
    compare(step, &whole, &alone, backwards)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn coefficients_and_metrics_are_bitwise_identical(
        step in steps(),
        cuts in any::<u16>(),
        backwards in any::<bool>(),
        is_interpolated in any::<bool>(),
    ) {
        let step = if is_interpolated { step } else { Step { interpolation: Vec::new(), ..step } };
        for loss in losses() {
            check(&step, &loss, cuts, backwards)?;
        }
        let spec = ValueLoss { coef: 1.0, clip: Some(0.2) };
        let critic = |piece| step.critic(&spec, piece).unwrap();
        let parts: Vec<LossGrad> = pieces(step.lengths.len(), cuts).into_iter().map(critic).collect();
        compare(&step, &critic(0..step.lengths.len()), &parts, backwards)?;
    }

    /// Reordering sequences reorders their coefficients.
    #[test]
    fn order_does_not_matter(step in steps(), turn in 0usize..8) {
        let n = step.lengths.len();
        let order: Vec<usize> = (0..n).map(|i| (i + turn) % n).collect();
        let take = |values: &[f32]| -> Vec<f32> {
            let of = |&s: &usize| values[step.start(s)..step.start(s) + step.lengths[s]].to_vec();
            order.iter().flat_map(of).collect()
        };
        let turned = Step {
            lengths: order.iter().map(|&s| step.lengths[s]).collect(),
            completion_limit: step.completion_limit,
            logprob: take(&step.logprob),
            entropy: take(&step.entropy),
            value: take(&step.value),
            advantage: take(&step.advantage),
            old: take(&step.old),
            behavior: take(&step.behavior),
            reference: take(&step.reference),
            interpolation: take(&step.interpolation),
            returns: take(&step.returns),
            old_value: take(&step.old_value),
            outcome: order.iter().map(|&s| step.outcome[s]).collect(),
            masked: order.iter().map(|&s| step.masked[s]).collect(),
            mismatch: step.mismatch,
        };
        // Selection from a step depends on positions.
        for loss in losses().into_iter().filter(|loss| loss.scope() != Scope::Step) {
            let a = step.loss(&loss).unwrap();
            let b = turned.loss(&loss).unwrap();
            prop_assert_eq!(bits(&take(&a.d_logprob)), bits(&b.d_logprob));
            prop_assert_eq!(bits(&take(&a.d_value)), bits(&b.d_value));
            prop_assert_eq!(a.terms.loss().to_bits(), b.terms.loss().to_bits());
        }
    }
}
