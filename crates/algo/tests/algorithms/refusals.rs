//! Bad numbers get a typed error that names the place.

use rloom_algo::{
    Aggregation, AlgoError, Algorithm, GlobalCounts, LossBatch, Method, Mismatch, Score, TokenScores,
    policy_loss,
};

use crate::step::{Step, losses};

fn step() -> Step {
    Step {
        lengths: vec![2, 0, 3],
        completion_limit: 4,
        logprob: vec![-1.0; 5],
        entropy: vec![1.0; 5],
        advantage: vec![1.0; 5],
        old: vec![-1.0; 5],
        reference: vec![-1.0; 5],
    }
}

type Column = fn(&mut Step) -> &mut Vec<f32>;

#[test]
fn nan_and_infinity_name_row_and_token() {
    let loss = Algorithm::preset(Method::Grpo).loss;
    let columns: [(Score, Column); 5] = [
        (Score::Logprob, |s| &mut s.logprob),
        (Score::Entropy, |s| &mut s.entropy),
        (Score::Advantage, |s| &mut s.advantage),
        (Score::OldLogprob, |s| &mut s.old),
        (Score::ReferenceLogprob, |s| &mut s.reference),
    ];
    for (wanted, column) in columns {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut step = step();
            column(&mut step)[3] = bad;
            let error = step.loss(&loss).unwrap_err();
            let AlgoError::NonFinite { what, row: 2, token: 1, .. } = error else { panic!("{error:?}") };
            assert_eq!(what, wanted);
            assert_eq!(error.row(), Some(2));
        }
    }
    let mut step = step();
    step.logprob[4] = f32::NAN;
    let text = step.loss(&loss).unwrap_err().to_string();
    assert_eq!(text, "log-probability is NaN at row 2, policy token 2");
}

#[test]
fn a_coefficient_that_overflows_is_an_error() {
    let mut step = step();
    step.advantage[4] = -f32::MAX;
    step.old[4] = -19.0;
    let error = step.loss(&Algorithm::preset(Method::Grpo).loss).unwrap_err();
    assert!(
        matches!(error, AlgoError::NonFinite { what: Score::Coefficient, row: 2, token: 2, .. }),
        "{error:?}"
    );
}

#[test]
fn shapes() {
    let loss = Algorithm::preset(Method::Grpo).loss;
    let scores = TokenScores { logprob: vec![-1.0; 3], entropy: vec![1.0; 3], value: Vec::new() };
    let counts = GlobalCounts::of_lengths([3], 4);
    let array = [-1.0f32; 3];
    let good = LossBatch {
        rows: &[0..1, 1..3],
        advantage: Some(&array),
        old_logprob: Some(&array),
        ..LossBatch::default()
    };
    let error =
        |batch: &LossBatch<'_>, scores: &TokenScores| policy_loss(&loss, batch, scores, &counts).unwrap_err();

    let gap = error(&LossBatch { rows: &[0..1, 2..3], ..good }, &scores);
    assert_eq!(gap, AlgoError::Rows { row: 1, start: 2, end: 3, expected: 1 });
    let short = error(&LossBatch { rows: &[0..1, 1..2], ..good }, &scores);
    assert_eq!(short, AlgoError::Rows { row: 2, start: 2, end: 2, expected: 3 });
    let advantage = error(&LossBatch { advantage: Some(&array[..2]), ..good }, &scores);
    assert_eq!(advantage, AlgoError::Length { what: Score::Advantage, got: 2, expected: 3 });
    let entropy = error(&good, &TokenScores { entropy: Vec::new(), ..scores.clone() });
    assert_eq!(entropy, AlgoError::Length { what: Score::Entropy, got: 0, expected: 3 });
    let old = error(&LossBatch { old_logprob: None, ..good }, &scores);
    assert_eq!(old, AlgoError::Missing { what: Score::OldLogprob });
    let behavior = error(&LossBatch { mismatch: Mismatch::Scores, ..good }, &scores);
    assert_eq!(behavior, AlgoError::Missing { what: Score::BehaviorLogprob });
    let with_kl = losses().into_iter().find(|l| l.kl.is_some()).unwrap();
    let reference = policy_loss(&with_kl, &good, &scores, &counts).unwrap_err();
    assert_eq!(reference, AlgoError::Missing { what: Score::ReferenceLogprob });
}

/// Counts of a micro-batch instead of the step: the mistake that makes losses depend on the split.
#[test]
fn counts_are_of_the_whole_step() {
    let loss = Algorithm::preset(Method::Grpo).loss;
    let step = step();
    let rows = step.rows(0..3);
    let batch = LossBatch {
        rows: &rows,
        advantage: Some(&step.advantage),
        old_logprob: Some(&step.old),
        ..LossBatch::default()
    };
    let scores =
        TokenScores { logprob: step.logprob.clone(), entropy: step.entropy.clone(), value: Vec::new() };
    let too_few = GlobalCounts { tokens: 4, ..step.counts() };
    let error = policy_loss(&loss, &batch, &scores, &too_few).unwrap_err();
    assert_eq!(error, AlgoError::Counts { what: "tokens", counted: 4, seen: 5 });

    let too_many = GlobalCounts { sequences: 3, ..step.counts() };
    let grad = policy_loss(&loss, &batch, &scores, &too_many).unwrap();
    let error = grad.terms.finish(&too_many).unwrap_err();
    assert_eq!(error, AlgoError::Counts { what: "sequences", counted: 3, seen: 2 });
    assert!(grad.terms.finish(&step.counts()).is_ok());
}

#[test]
fn constant_length_needs_its_constant() {
    let step = Step { completion_limit: 0, ..step() };
    let loss = Algorithm::preset(Method::DrGrpo).loss;
    assert_eq!(loss.aggregation, Aggregation::ConstantLength);
    assert_eq!(step.loss(&loss).unwrap_err(), AlgoError::NoCompletionLimit);
}

#[test]
fn a_sequence_has_one_advantage() {
    let mut step = step();
    step.advantage[4] = 0.5;
    let error = step.loss(&Algorithm::preset(Method::Rloo).loss).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 2: a loss at sequence level needs one advantage per sequence, and it changes at policy token 2"
    );
    assert_eq!(error.row(), Some(2));
}
