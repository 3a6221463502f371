//! What must hold exactly: the first step, empty rows, zero advantages, equivalent losses, metrics.

use proptest::prelude::*;
use rloom_algo::{
    Aggregation, Algorithm, GlobalCounts, KlEstimator, KlLoss, Level, LossBatch, LossMetrics, LossTerms,
    Method, Mismatch, PolicyLoss, PpoClip, Reinforce, Surrogate, TokenScores, policy_loss,
};
use rloom_core::metric;

use crate::step::{Step, losses, steps};

fn reinforce(level: Level, aggregation: Aggregation) -> PolicyLoss {
    PolicyLoss {
        surrogate: Surrogate::Reinforce(Reinforce { level }),
        aggregation,
        kl: None,
        entropy_coef: 0.0,
    }
}

proptest! {
    /// Current = old = reference: nothing is clipped, both divergences are 0, and the clipped loss has the gradient
    /// of the plain policy gradient.
    #[test]
    fn first_step(step in steps()) {
        let step = Step { old: step.logprob.clone(), reference: step.logprob.clone(), ..step };
        for aggregation in Aggregation::ALL {
            for estimator in [KlEstimator::K2, KlEstimator::K3] {
                let loss = PolicyLoss {
                    surrogate: Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(3.0) }),
                    kl: Some(KlLoss { coef: 1.0, estimator }),
                    ..reinforce(Level::Token, aggregation)
                };
                let grad = step.loss(&loss).unwrap();
                let plain = step.loss(&reinforce(Level::Token, aggregation)).unwrap();
                prop_assert_eq!(&grad.d_logprob, &plain.d_logprob);
                let m = grad.terms.finish(&step.counts()).unwrap();
                if step.logprob.is_empty() {
                    prop_assert_eq!(m.ratio_min, None);
                    continue;
                }
                prop_assert_eq!((m.ratio_min, m.ratio_max), (Some(1.0), Some(1.0)));
                prop_assert_eq!((m.clip_ratio_low, m.clip_ratio_high, m.clip_ratio_dual), (Some(0.0), Some(0.0), Some(0.0)));
                prop_assert_eq!((m.kl, m.approx_kl, m.kl_loss), (Some(0.0), Some(0.0), 0.0));
                prop_assert_eq!((m.mismatch_kl, m.mismatch_max_abs), (Some(0.0), Some(0.0)));
            }
        }
    }

    /// A completion as one action is the sum over its tokens, averaged over sequences.
    #[test]
    fn sequence_level_is_the_sum_over_tokens(step in steps()) {
        let sequence = step.loss(&reinforce(Level::Sequence, Aggregation::TokenMean)).unwrap();
        let token = step.loss(&reinforce(Level::Token, Aggregation::SequenceSum)).unwrap();
        prop_assert_eq!(&sequence.d_logprob, &token.d_logprob);
        prop_assert!((sequence.terms.loss() - token.terms.loss()).abs() < 1e-9);
    }

    /// Where all sequences are as long as the limit, every mean over tokens is one.
    #[test]
    fn modes_agree_on_equal_lengths(step in steps(), length in 1usize..5) {
        let n = step.logprob.len() / length;
        let mut step = Step { lengths: vec![length; n], completion_limit: length as u64, ..step };
        for values in [&mut step.logprob, &mut step.old, &mut step.reference, &mut step.entropy, &mut step.advantage] {
            values.truncate(n * length);
        }
        let mode = |a| step.loss(&reinforce(Level::Token, a)).unwrap().d_logprob;
        let wanted = mode(Aggregation::TokenMean);
        prop_assert_eq!(&mode(Aggregation::SequenceMean), &wanted);
        prop_assert_eq!(&mode(Aggregation::ConstantLength), &wanted);
    }

    /// A zero advantage has a zero coefficient, with a positive sign.
    #[test]
    fn zero_advantage_is_silent(step in steps()) {
        let step = Step { advantage: vec![0.0; step.logprob.len()], ..step };
        for loss in losses().into_iter().filter(|l| l.surrogate.reads_advantage() && l.kl.is_none()) {
            let grad = step.loss(&loss).unwrap();
            prop_assert!(grad.d_logprob.iter().all(|d| d.to_bits() == 0));
            prop_assert_eq!(grad.terms.loss(), 0.0);
            let m = grad.terms.finish(&step.counts()).unwrap();
            let clipped = [m.clip_ratio_low, m.clip_ratio_high, m.clip_ratio_dual];
            prop_assert!(clipped.iter().flatten().all(|&share| share == 0.0));
        }
    }
}

#[test]
fn empty_batches_and_rows() {
    for loss in losses() {
        let none = Step { completion_limit: 4, ..Step::default() };
        let grad = none.loss(&loss).unwrap();
        assert!(grad.d_logprob.is_empty() && grad.d_entropy.is_empty() && grad.d_value.is_empty());
        let m = grad.terms.finish(&none.counts()).unwrap();
        assert_eq!((m.loss, m.entropy, m.clip_ratio_low), (0.0, None, None));

        let masked = Step { lengths: vec![0, 0, 0], ..none };
        assert_eq!(masked.counts(), GlobalCounts { tokens: 0, sequences: 0, completion_limit: 4 });
        assert_eq!(masked.loss(&loss).unwrap().terms.loss(), 0.0);

        // Rows without policy tokens change nothing for the others.
        let full = Step {
            lengths: vec![2, 1],
            completion_limit: 4,
            logprob: vec![-1.0, -0.5, -2.0],
            entropy: vec![1.0, 0.5, 0.2],
            advantage: vec![1.0, 1.0, -1.0],
            old: vec![-1.1, -0.4, -2.0],
            reference: vec![-1.0, -0.7, -1.0],
        };
        let holes = Step { lengths: vec![0, 2, 0, 0, 1, 0], ..full.clone() };
        let (a, b) = (full.loss(&loss).unwrap(), holes.loss(&loss).unwrap());
        assert_eq!(a.d_logprob, b.d_logprob);
        assert_eq!(a.terms.finish(&full.counts()), b.terms.finish(&holes.counts()));
    }
}

/// Each clip counts the tokens where its constant branch is active, and only there is the gradient zero.
#[test]
fn clips_are_counted() {
    let ratios: [f64; 6] = [0.5, 1.5, 0.5, 1.5, 4.0, 1.0];
    let step = Step {
        lengths: vec![6],
        completion_limit: 6,
        logprob: ratios.iter().map(|r| (r.ln() - 1.0) as f32).collect(),
        entropy: vec![1.0; 6],
        advantage: vec![1.0, 1.0, -1.0, -1.0, -1.0, 2.0],
        old: vec![-1.0; 6],
        reference: vec![-1.0; 6],
    };
    let clip = |dual_clip| PolicyLoss {
        surrogate: Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 0.2, dual_clip }),
        ..reinforce(Level::Token, Aggregation::TokenMean)
    };
    let grad = step.loss(&clip(Some(3.0))).unwrap();
    let zero: Vec<bool> = grad.d_logprob.iter().map(|&d| d == 0.0).collect();
    assert_eq!(zero, [false, true, true, false, true, false]);
    let m = grad.terms.finish(&step.counts()).unwrap();
    let sixth = Some(1.0 / 6.0);
    assert_eq!((m.clip_ratio_low, m.clip_ratio_high, m.clip_ratio_dual), (sixth, sixth, sixth));
    assert!((m.ratio_min.unwrap() - 0.5).abs() < 1e-6 && (m.ratio_max.unwrap() - 4.0).abs() < 1e-6);
    let wanted = (-0.5 - 1.2 + 0.8 + 1.5 + 3.0 - 2.0) / 6.0;
    assert!((m.loss - wanted).abs() < 1e-7);

    // A dual clip below 1 + ε_high bounds negative advantages only.
    let low_dual = PolicyLoss {
        surrogate: Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 1.0, dual_clip: Some(1.1) }),
        ..clip(None)
    };
    let grad = step.loss(&low_dual).unwrap();
    assert!(grad.d_logprob[1] < 0.0 && grad.d_logprob[3] == 0.0, "{:?}", grad.d_logprob);

    let without = step.loss(&clip(None)).unwrap();
    assert!(without.d_logprob[4] > 0.0);
    let m = without.terms.finish(&step.counts()).unwrap();
    assert_eq!(m.clip_ratio_dual, None);
}

/// Several optimiser steps per batch: the first is unclipped, later ones are not, and the mean says so.
#[test]
fn metrics_over_optimiser_steps() {
    let loss = Algorithm::preset(Method::Grpo).loss;
    let first = Step {
        lengths: vec![2],
        completion_limit: 2,
        logprob: vec![-1.0, -2.0],
        entropy: vec![1.0, 2.0],
        advantage: vec![1.0, 1.0],
        old: vec![-1.0, -2.0],
        reference: vec![-1.0, -2.0],
    };
    let second = Step { logprob: vec![-0.5, -2.0], ..first.clone() };
    let metrics = |s: &Step| s.loss(&loss).unwrap().terms.finish(&s.counts()).unwrap();
    let (a, b) = (metrics(&first), metrics(&second));
    assert_eq!((a.clip_ratio_high, b.clip_ratio_high), (Some(0.0), Some(0.5)));
    assert_eq!(b.approx_kl, Some(-0.25));
    let both = LossMetrics::over_steps(&[a, b]).unwrap();
    assert_eq!(both.clip_ratio_high, Some(0.25));
    assert_eq!((both.ratio_min, both.ratio_max), (Some(1.0), b.ratio_max));
    assert_eq!(both.entropy, Some(1.5));
    assert_eq!(LossMetrics::over_steps(&[]), None);
}

/// The mismatch is measured between what the caller names, and only then reported.
#[test]
fn mismatch() {
    let rows = [0..1, 1..2];
    let scores = TokenScores { logprob: vec![-1.0, -1.0], entropy: vec![0.5; 2], value: Vec::new() };
    let counts = GlobalCounts::of_lengths([1, 1], 2);
    let loss = reinforce(Level::Token, Aggregation::TokenMean);
    let measured = |mismatch| {
        let batch = LossBatch {
            rows: &rows,
            advantage: Some(&[1.0, 1.0]),
            old_logprob: Some(&[-1.25, -1.0]),
            behavior_logprob: Some(&[-1.5, -1.0]),
            reference_logprob: None,
            mismatch,
        };
        policy_loss(&loss, &batch, &scores, &counts).unwrap().terms.finish(&counts).unwrap()
    };
    assert_eq!(measured(Mismatch::Unmeasured).mismatch_max_abs, None);
    assert_eq!(measured(Mismatch::Scores).mismatch_max_abs, Some(0.5));
    let old = measured(Mismatch::Old);
    assert_eq!(old.mismatch_max_abs, Some(0.25));
    // KL(sampler ‖ trainer) by k3: exp(d) − d − 1 with d = trainer − sampler.
    assert!((old.mismatch_kl.unwrap() - (0.25f64.exp() - 1.25) / 2.0).abs() < 1e-12);
    let names: Vec<&str> = old.named().iter().map(|(n, _)| *n).collect();
    assert!(names.contains(&metric::MISMATCH_KL) && names.contains(&metric::APPROX_KL));
    assert!(!names.contains(&metric::KL) && !names.contains(&metric::CLIP_RATIO_LOW));
}

#[test]
fn a_step_without_any_micro_batch_has_no_metrics_but_a_zero_loss() {
    let m = LossTerms::default().finish(&GlobalCounts::default()).unwrap();
    assert_eq!(m.named(), [(metric::LOSS, 0.0)]);
}
