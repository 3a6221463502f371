//! Micro-batches: the same bits however an optimiser step is cut.

use proptest::prelude::*;
use rloom_algo::{LossTerms, PolicyLoss};

use crate::step::{Step, losses, steps};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Cuts after the sequences whose bit is set.
fn pieces(sequences: usize, cuts: u16) -> Vec<std::ops::Range<usize>> {
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

fn check(step: &Step, loss: &PolicyLoss, cuts: u16, backwards: bool) -> Result<(), TestCaseError> {
    let whole = step.loss(loss).unwrap();
    let (mut d_logprob, mut d_entropy) = (Vec::new(), Vec::new());
    let mut parts: Vec<LossTerms> = Vec::new();
    for piece in pieces(step.lengths.len(), cuts) {
        let grad = step.part(loss, piece).unwrap();
        d_logprob.extend(grad.d_logprob);
        d_entropy.extend(grad.d_entropy);
        parts.push(grad.terms);
    }
    prop_assert_eq!(bits(&d_logprob), bits(&whole.d_logprob));
    prop_assert_eq!(bits(&d_entropy), bits(&whole.d_entropy));
    if backwards {
        parts.reverse();
    }
    let mut merged = LossTerms::default();
    for part in &parts {
        merged.merge(part);
    }
    let counts = step.counts();
    let (merged, whole) = (merged.finish(&counts).unwrap(), whole.terms.finish(&counts).unwrap());
    prop_assert_eq!(format!("{merged:?}"), format!("{whole:?}"));
    for ((name, a), (_, b)) in merged.named().into_iter().zip(whole.named()) {
        prop_assert_eq!(a.to_bits(), b.to_bits(), "{}", name);
    }
    Ok(())
}

proptest! {
    #[test]
    fn coefficients_and_metrics_are_bit_equal(step in steps(), cuts in any::<u16>(), backwards in any::<bool>()) {
        for loss in losses() {
            check(&step, &loss, cuts, backwards)?;
        }
    }

    /// Moving whole sequences moves their coefficients with them.
    #[test]
    fn order_does_not_matter(step in steps(), turn in 0usize..8) {
        let n = step.lengths.len();
        let order: Vec<usize> = (0..n).map(|i| (i + turn) % n).collect();
        let take = |values: &[f32]| -> Vec<f32> {
            order
                .iter()
                .flat_map(|&s| values[step.start(s)..step.start(s) + step.lengths[s]].to_vec())
                .collect()
        };
        let turned = Step {
            lengths: order.iter().map(|&s| step.lengths[s]).collect(),
            completion_limit: step.completion_limit,
            logprob: take(&step.logprob),
            entropy: take(&step.entropy),
            advantage: take(&step.advantage),
            old: take(&step.old),
            reference: take(&step.reference),
        };
        for loss in losses() {
            let a = step.loss(&loss).unwrap();
            let b = turned.loss(&loss).unwrap();
            prop_assert_eq!(bits(&take(&a.d_logprob)), bits(&b.d_logprob));
            prop_assert_eq!(a.terms.loss().to_bits(), b.terms.loss().to_bits());
        }
    }
}
