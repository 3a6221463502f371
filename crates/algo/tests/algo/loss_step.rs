//! Losses as data: every part survives serialization bitwise, and the copy evaluates to the same bits.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{
    AlgoError, GlobalCounts, LossGrad, LossInputs, LossStep, LossTerms, Mismatch, Objective, PolicyObjective,
    Scope, TokenScores, ValueLoss,
};
use rloom_core::{Purpose, RandomKey};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    losses::losses,
    step::{Step, steps},
};

pub(crate) const DRAWS: RandomKey =
    RandomKey { seed: u64::MAX - 1, stage: 2, purpose: Purpose::Algorithm, ticket: 5, sample: 1, segment: 0 };

/// A copy made through JSON.
fn copied<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let json = serde_json::to_string(value).unwrap();
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"))
}

pub(crate) fn inputs(step: &Step, sequences: Range<usize>) -> LossInputs {
    let rows = step.rows(sequences.clone());
    let batch = step.batch(&rows, sequences);
    let owned = |values: Option<&[f32]>| values.map(<[f32]>::to_vec);
    LossInputs {
        rows: rows.clone(),
        masked: batch.masked.to_vec(),
        episode_tokens: batch.episode_tokens.to_vec(),
        advantage: owned(batch.advantage),
        behavior: owned(batch.behavior_logprob),
        old: owned(batch.old_logprob),
        interpolation: owned(batch.interpolation),
        reference: owned(batch.reference_logprob),
        sharpened: owned(batch.sharpened_logprob),
        returns: owned(batch.returns),
        old_value: owned(batch.old_value),
        outcome: owned(batch.outcome),
        margin: owned(batch.margin),
        steps: batch.steps.to_vec(),
        teacher: batch.teacher.cloned(),
        given: batch.given.cloned(),
        mismatch: batch.mismatch,
    }
}

/// Evaluates a step through its own methods, by the scope that it declares.
pub(crate) fn evaluated(step: &LossStep<'_>, scores: &[TokenScores]) -> Vec<LossGrad> {
    if step.scope() == Scope::Step {
        return step.evaluate_step(scores).unwrap();
    }
    let grads: Vec<LossGrad> =
        scores.iter().enumerate().map(|(i, scores)| step.evaluate(i, scores).unwrap()).collect();
    assert_eq!(text(&step.evaluate_step(scores).unwrap()), text(&grads));
    grads
}

/// Compares all bits, including the sign of 0.
pub(crate) fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub(crate) fn halves(step: &Step) -> Vec<Range<usize>> {
    let n = step.lengths.len();
    if n < 2 { std::iter::once(0..n).collect() } else { vec![0..n / 2, n / 2..n] }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_serialized_step_evaluates_to_the_same_bits(step in steps()) {
        let pieces = halves(&step);
        let inputs: Vec<LossInputs> = pieces.iter().map(|piece| inputs(&step, piece.clone())).collect();
        let scores: Vec<TokenScores> = pieces.into_iter().map(|piece| step.scores(piece)).collect();
        let policies = losses().into_iter().map(|loss| Objective::Policy(PolicyObjective { loss, draws: DRAWS }));
        let critic = Objective::Value(ValueLoss { coef: 1.0, clip: Some(0.2) });
        for objective in policies.chain([critic]) {
            let here = LossStep::new(objective, step.counts(), &inputs);
            let there: LossStep<'static> = serde_json::from_str(&text(&here)).unwrap();
            prop_assert_eq!(&there, &here);
            prop_assert_eq!(there.inert(0), here.inert(0));
            let (here, there) = (evaluated(&here, &scores), evaluated(&there, &copied(&scores)));
            let returned: Vec<LossGrad> = copied(&there);
            let mut sums = (LossTerms::default(), LossTerms::default());
            for (a, b) in here.iter().zip(&returned) {
                prop_assert_eq!(bits(&a.d_logprob), bits(&b.d_logprob));
                prop_assert_eq!(bits(&a.d_entropy), bits(&b.d_entropy));
                prop_assert_eq!(bits(&a.d_value), bits(&b.d_value));
                sums.0.merge(&a.terms);
                sums.1.merge(&b.terms);
            }
            prop_assert_eq!(text(&sums.0), text(&sums.1));
            let (a, b) = (sums.0.finish(&step.counts()).unwrap(), sums.1.finish(&step.counts()).unwrap());
            prop_assert_eq!(format!("{a:?}"), format!("{b:?}"));
        }
    }

    /// Any finite float, subnormal and −0 included.
    #[test]
    fn arrays_keep_their_bits(words in prop::collection::vec(any::<u32>(), 0..64)) {
        let values: Vec<f32> = words.into_iter().map(f32::from_bits).filter(|x| x.is_finite()).collect();
        let scores = TokenScores {
            logprob: values.clone(),
            candidate_logprob: values.clone(),
            ..TokenScores::default()
        };
        let copy = copied(&scores);
        prop_assert_eq!(bits(&copy.logprob), bits(&values));
        prop_assert_eq!(bits(&copy.candidate_logprob), bits(&values));
        let inputs = LossInputs { advantage: Some(values.clone()), ..LossInputs::default() };
        prop_assert_eq!(bits(&copied(&inputs).advantage.unwrap()), bits(&values));
    }

    #[test]
    fn sums_keep_their_bits(terms in prop::collection::vec((-1.0f64..1.0, -300i32..300), 0..20)) {
        let mut sum = rloom_algo::ExactSum::new();
        sum.extend(terms.iter().map(|&(m, e)| m * f64::from(e).exp2()));
        let mut copy = copied(&sum);
        prop_assert_eq!(copy.value().to_bits(), sum.value().to_bits());
        // The copy continues like the original.
        copy.add(1.0);
        sum.add(1.0);
        prop_assert_eq!(text(&copy), text(&sum));
    }
}

#[test]
fn extreme_floats_survive() {
    for x in [f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), -0.0, 0.1, 16_777_217.0] {
        assert_eq!(copied(&vec![x])[0].to_bits(), x.to_bits());
    }
    for x in [f64::MAX, f64::MIN_POSITIVE, f64::from_bits(1), -0.0, 0.1, 2e-4] {
        let loss = ValueLoss { coef: x, clip: None };
        assert_eq!(copied(&loss).coef.to_bits(), x.to_bits());
    }
}

/// Terms in which nothing was counted have open extremes, which JSON cannot write as numbers.
#[test]
fn empty_terms_survive() {
    let mut copy: LossTerms = copied(&LossTerms::default());
    copy.merge(&LossTerms::default());
    assert_eq!(text(&copy), text(&LossTerms::default()));
    assert_eq!(copy.finish(&GlobalCounts::default()).unwrap().ratio_min, None);
}

#[test]
fn random_keys_survive() {
    assert_eq!(copied(&DRAWS), DRAWS);
    assert_eq!(copied(&DRAWS.stream()).bits(7), DRAWS.stream().bits(7));
}

#[test]
fn the_samplers_log_probabilities_replace_missing_old_ones() {
    let inputs =
        LossInputs { behavior: Some(vec![-1.0]), mismatch: Mismatch::Scores, ..LossInputs::default() };
    assert_eq!(inputs.batch().old_logprob, Some(&[-1.0][..]));
    let recomputed = LossInputs { old: Some(vec![-2.0]), ..inputs };
    assert_eq!(recomputed.batch().old_logprob, Some(&[-2.0][..]));
    assert_eq!(recomputed.batch().behavior_logprob, Some(&[-1.0][..]));
}

#[test]
fn a_missing_micro_batch_is_an_error() {
    let step =
        LossStep::new(Objective::Value(ValueLoss { coef: 1.0, clip: None }), GlobalCounts::default(), &[]);
    let error = step.evaluate(0, &TokenScores::default()).unwrap_err();
    assert_eq!(error, AlgoError::NoMicroBatch { micro_batch: 0, micro_batches: 0 });
    let error = step.evaluate_step(&[TokenScores::default()]).unwrap_err();
    assert_eq!(error, AlgoError::MicroBatches { batches: 0, scores: 1 });
    assert!(step.inert(3).is_empty());
    assert_eq!(step.clone().into_owned(), step);
}
