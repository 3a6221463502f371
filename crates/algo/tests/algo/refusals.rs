//! Invalid numbers and missing arrays are typed errors with their position.

use miette::Diagnostic;
use rloom_algo::{
    Aggregation, AlgoError, Algorithm, Correction, GlobalCounts, ImplicitReward, KlEstimator, Level,
    LossBatch, Method, Mismatch, PolicyLoss, RatioTo, RejectLevel, Rejection, Scope, Score, Surrogate,
    TokenScores, Topr, ValueLoss, policy_loss, step_loss,
};

use crate::{
    losses::{corrections, is_by_token, kl, losses, surrogates},
    step::{Step, draw},
};

fn step() -> Step {
    Step {
        lengths: vec![2, 0, 3],
        completion_limit: 4,
        logprob: vec![-1.0; 5],
        entropy: vec![1.0; 5],
        value: vec![0.5; 5],
        advantage: vec![1.0; 5],
        old: vec![-1.0; 5],
        behavior: vec![-1.0; 5],
        reference: vec![-1.0; 5],
        interpolation: vec![0.5; 5],
        returns: vec![1.0; 5],
        old_value: vec![0.5; 5],
        outcome: vec![1.0, 0.0, 0.0],
        masked: vec![false; 3],
        mismatch: Mismatch::Unmeasured,
    }
}

fn grpo() -> PolicyLoss {
    Algorithm::preset(Method::Grpo).unwrap().loss
}

const VALUE: ValueLoss = ValueLoss { coef: 1.0, clip: Some(0.2) };

type Clear = fn(&mut Step);
type Column = fn(&mut Step) -> &mut Vec<f32>;

const COLUMNS: [(Score, Column); 10] = [
    (Score::Logprob, |s| &mut s.logprob),
    (Score::Entropy, |s| &mut s.entropy),
    (Score::Advantage, |s| &mut s.advantage),
    (Score::OldLogprob, |s| &mut s.old),
    (Score::BehaviorLogprob, |s| &mut s.behavior),
    (Score::ReferenceLogprob, |s| &mut s.reference),
    (Score::Interpolation, |s| &mut s.interpolation),
    (Score::Value, |s| &mut s.value),
    (Score::Return, |s| &mut s.returns),
    (Score::OldValue, |s| &mut s.old_value),
];

/// Also in masked rows.
#[test]
fn nan_and_infinity_name_row_and_token() {
    for (wanted, column) in COLUMNS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for is_masked in [false, true] {
                let mut step = Step { masked: vec![false, false, is_masked], ..step() };
                column(&mut step)[3] = bad;
                let loss = PolicyLoss { value: Some(VALUE), ..grpo() };
                let error = step.loss(&loss).unwrap_err();
                let AlgoError::NonFinite { what, row: 2, token: 1, .. } = error else { panic!("{error:?}") };
                assert_eq!(what, wanted);
                assert_eq!((error.row(), error.micro_batch()), (Some(2), None));
                let of_critic = [Score::Value, Score::Return, Score::OldValue].contains(&wanted);
                if of_critic {
                    assert!(step.critic(&VALUE, 0..3).is_err());
                }
            }
        }
    }
    let mut step = step();
    step.logprob[4] = f32::NAN;
    let text = step.loss(&grpo()).unwrap_err().to_string();
    assert_eq!(text, "log-probability is NaN at row 2, policy token 2");
}

#[test]
fn wrong_lengths_are_named() {
    let loss = PolicyLoss { value: Some(VALUE), ..grpo() };
    let whole = step();
    let rows = whole.rows(0..3);
    for (wanted, column) in COLUMNS {
        if wanted == Score::Logprob {
            continue; // The rows are checked against it.
        }
        let mut step = step();
        column(&mut step).push(0.0);
        let scores = TokenScores {
            logprob: step.logprob.clone(),
            entropy: step.entropy.clone(),
            value: step.value.clone(),
            ..TokenScores::default()
        };
        let batch = LossBatch {
            rows: &rows,
            advantage: Some(&step.advantage),
            old_logprob: Some(&step.old),
            behavior_logprob: Some(&step.behavior),
            reference_logprob: Some(&step.reference),
            interpolation: Some(&step.interpolation),
            returns: Some(&step.returns),
            old_value: Some(&step.old_value),
            ..LossBatch::default()
        };
        let error = policy_loss(&loss, &batch, &scores, &whole.counts()).unwrap_err();
        assert_eq!(error, AlgoError::Length { what: wanted, got: 6, expected: 5 });
    }
}

#[test]
fn rows_tile_the_tokens() {
    let scores = TokenScores { logprob: vec![-1.0; 3], entropy: vec![1.0; 3], ..TokenScores::default() };
    let counts = GlobalCounts::of_lengths([3], 4);
    let array = [-1.0f32; 3];
    let good = LossBatch {
        rows: &[0..1, 1..3],
        advantage: Some(&array),
        old_logprob: Some(&array),
        ..LossBatch::default()
    };
    let error = |batch: &LossBatch<'_>| policy_loss(&grpo(), batch, &scores, &counts).unwrap_err();
    let gap = error(&LossBatch { rows: &[0..1, 2..3], ..good });
    assert_eq!(gap, AlgoError::Rows { row: 1, start: 2, end: 3, expected: 1 });
    let short = error(&LossBatch { rows: &[0..1, 1..2], ..good });
    assert_eq!(short, AlgoError::Rows { row: 2, start: 2, end: 2, expected: 3 });
    let mask = error(&LossBatch { masked: &[true], ..good });
    assert_eq!(mask, AlgoError::RowLength { what: "mask", got: 1, expected: 2 });
    let outcome = error(&LossBatch { outcome: Some(&[0.0; 3]), ..good });
    assert_eq!(outcome, AlgoError::RowLength { what: "outcome", got: 3, expected: 2 });
    let episodes = error(&LossBatch { episode_tokens: &[3], ..good });
    assert_eq!(episodes, AlgoError::RowLength { what: "episode_tokens", got: 1, expected: 2 });
}

/// Exactly the inputs that each kind of loss reads.
#[test]
fn missing_arrays_are_named() {
    let is_enough = |loss: &PolicyLoss, step: &Step| match step.loss(loss) {
        Ok(_) => None,
        Err(AlgoError::Missing { what }) => Some(what),
        Err(AlgoError::InMicroBatch { micro_batch: 0, error }) => match *error {
            AlgoError::Missing { what } => Some(what),
            other => panic!("{other:?}"),
        },
        Err(other) => panic!("{other:?}"),
    };
    let full = Step { interpolation: Vec::new(), ..step() };
    let nothing = Step {
        lengths: full.lengths.clone(),
        completion_limit: 4,
        logprob: full.logprob.clone(),
        entropy: full.entropy.clone(),
        ..Step::default()
    };
    for loss in losses() {
        assert_eq!(is_enough(&loss, &full), None, "{loss:?}");
        // A missing array is only an error if the loss reads it.
        let reads = &loss.surrogate;
        let corrects = loss.correction != Correction::default();
        let has_ratio = reads.reads_old() || loss.kl.is_some_and(|kl| kl.ratio);
        let old = (has_ratio && loss.ratio_to == RatioTo::Old) || (corrects && reads.has_ratio());
        let to_sampler = has_ratio && loss.ratio_to == RatioTo::Behavior;
        let sampler = reads.reads_behavior() || to_sampler || corrects || loss.is_stale;
        let clips = loss.value.is_some_and(|v| v.clip.is_some());
        let needed: [(Score, bool, Clear); 7] = [
            (Score::Advantage, reads.reads_advantage(), |s| s.advantage.clear()),
            (Score::OldLogprob, old, |s| s.old.clear()),
            (Score::BehaviorLogprob, sampler, |s| s.behavior.clear()),
            (Score::ReferenceLogprob, loss.reads_reference(), |s| s.reference.clear()),
            (Score::Value, loss.value.is_some(), |s| s.value.clear()),
            (Score::Return, loss.value.is_some(), |s| s.returns.clear()),
            (Score::OldValue, clips, |s| s.old_value.clear()),
        ];
        for (what, is_needed, clear) in needed {
            let mut step = full.clone();
            clear(&mut step);
            assert_eq!(is_enough(&loss, &step), is_needed.then_some(what), "{loss:?}");
        }
        let mut step = full.clone();
        step.outcome.clear();
        assert_eq!(is_enough(&loss, &step), reads.reads_outcome().then_some(Score::Outcome));
    }
    let sft = PolicyLoss::new(Surrogate::Sft(rloom_algo::Sft), Aggregation::TokenMean);
    assert_eq!(is_enough(&sft, &nothing), None);
    let measured = |mismatch| Step { mismatch, ..nothing.clone() };
    assert_eq!(is_enough(&sft, &measured(Mismatch::Scores)), Some(Score::BehaviorLogprob));
    assert_eq!(is_enough(&sft, &measured(Mismatch::Old)), Some(Score::OldLogprob));
    // Interpolation replaces recomputed log-probabilities, but needs the sampler's.
    let interpolated = Step { interpolation: vec![0.5; 5], old: Vec::new(), ..full };
    assert_eq!(is_enough(&grpo(), &interpolated), None);
    let without = Step { behavior: Vec::new(), ..interpolated };
    assert_eq!(is_enough(&grpo(), &without), Some(Score::BehaviorLogprob));
    let old = Step { mismatch: Mismatch::Old, behavior: vec![-1.0; 5], ..without };
    assert_eq!(is_enough(&grpo(), &old), Some(Score::OldLogprob), "what was interpolated was not measured");

    let critic = |step: &Step| step.critic(&VALUE, 0..3).unwrap_err();
    assert_eq!(critic(&Step { returns: Vec::new(), ..step() }), AlgoError::Missing { what: Score::Return });
    assert_eq!(
        critic(&Step { old_value: Vec::new(), ..step() }),
        AlgoError::Missing { what: Score::OldValue }
    );
}

#[test]
fn a_coefficient_that_overflows_is_an_error() {
    let mut by_logprob = Step { interpolation: Vec::new(), ..step() };
    by_logprob.advantage[4] = -f32::MAX;
    by_logprob.old[4] = -19.0;
    let mut by_value = step();
    by_value.value[4] = f32::MAX;
    by_value.returns[4] = -f32::MAX;
    let shared = PolicyLoss { value: Some(ValueLoss { coef: 10.0, clip: None }), ..grpo() };
    let alone = by_value.critic(&ValueLoss { coef: 10.0, clip: None }, 0..3);
    for error in
        [by_logprob.loss(&grpo()).unwrap_err(), by_value.loss(&shared).unwrap_err(), alone.unwrap_err()]
    {
        let is_named =
            matches!(error, AlgoError::NonFinite { what: Score::Coefficient, row: 2, token: 2, .. });
        assert!(is_named, "{error:?}");
    }
}

/// Counts of a micro-batch instead of the step, which would make losses depend on the split.
#[test]
fn counts_are_of_the_whole_step() {
    let step = Step { interpolation: Vec::new(), ..step() };
    let rows = step.rows(0..3);
    let (batch, scores) = (step.batch(&rows, 0..3), step.scores(0..3));
    let too_few = GlobalCounts { tokens: 4, ..step.counts() };
    let error = policy_loss(&grpo(), &batch, &scores, &too_few).unwrap_err();
    assert_eq!(error, AlgoError::Counts { what: "tokens", counted: 4, seen: 5 });

    let too_many = GlobalCounts { sequences: 3, ..step.counts() };
    let grad = policy_loss(&grpo(), &batch, &scores, &too_many).unwrap();
    let error = grad.terms.finish(&too_many).unwrap_err();
    assert_eq!(error, AlgoError::Counts { what: "sequences", counted: 3, seen: 2 });
    assert!(grad.terms.finish(&step.counts()).is_ok());
    // Masked rows are counted like the others.
    let masked = Step { masked: vec![true, false, true], ..step };
    let error = policy_loss(&grpo(), &masked.batch(&rows, 0..3), &scores, &too_few).unwrap_err();
    assert_eq!(error, AlgoError::Counts { what: "tokens", counted: 4, seen: 5 });
}

#[test]
fn constant_length_needs_its_constant() {
    let step = Step { completion_limit: 0, ..step() };
    let loss = Algorithm::preset(Method::DrGrpo).unwrap().loss;
    assert_eq!(loss.aggregation, Aggregation::ConstantLength);
    assert_eq!(step.loss(&loss).unwrap_err(), AlgoError::NoCompletionLimit);
}

#[test]
fn a_sequence_has_one_advantage() {
    let mut step = step();
    step.advantage[4] = 0.5;
    for surrogate in surrogates().into_iter().filter(Surrogate::is_per_sequence) {
        let error = step.loss(&PolicyLoss::new(surrogate, Aggregation::TokenMean)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "row 2: a loss at sequence level needs one advantage per sequence, and it changes at policy token 2"
        );
        assert_eq!(error.row(), Some(2));
    }
    // TOPR's weight is of the sequence, its terms are of tokens.
    let topr = Surrogate::Topr(Topr { level: Level::Sequence });
    assert!(step.loss(&PolicyLoss::new(topr, Aggregation::TokenMean)).is_ok());
}

#[test]
fn a_sequence_has_one_weight() {
    for surrogate in surrogates().into_iter().filter(|s| s.is_per_sequence() && s.reads_advantage()) {
        for correction in corrections() {
            let loss = PolicyLoss { correction, ..PolicyLoss::new(surrogate, Aggregation::TokenMean) };
            let refused = step().loss(&loss).err();
            assert_eq!(refused, is_by_token(&correction).then_some(AlgoError::TokenCorrection));
        }
    }
    let rejection = Rejection {
        estimator: KlEstimator::K2,
        level: RejectLevel::Token,
        low: f64::NEG_INFINITY,
        high: 0.1,
    };
    let correction = Correction { weight: None, rejection: Some(rejection) };
    let gspo = Algorithm::preset(Method::Gspo).unwrap().loss;
    let error = step().loss(&PolicyLoss { correction, ..gspo }).unwrap_err();
    assert!(error.help().is_some(), "{error}");
}

#[test]
fn outcomes_are_probabilities() {
    let loss =
        PolicyLoss::new(Surrogate::ImplicitReward(ImplicitReward { beta: 0.05 }), Aggregation::TokenMean);
    for bad in [1.5, -0.5, f32::NAN, f32::INFINITY] {
        let error = Step { outcome: vec![1.0, bad, bad], ..step() }.loss(&loss).unwrap_err();
        assert!(matches!(error, AlgoError::OutcomeRange { row: 2, .. }), "{error:?}");
        assert_eq!(error.row(), Some(2));
    }
    // Rows without tokens are not checked.
    assert!(Step { outcome: vec![1.0, f32::NAN, 0.5], ..step() }.loss(&loss).is_ok());
}

#[test]
fn step_scoped_losses_need_the_step() {
    let cov = losses().into_iter().find(|l| l.scope() == Scope::Step).unwrap();
    let error = step().part(&cov, 0..3).unwrap_err();
    assert_eq!(error, AlgoError::StepScope);
    assert!(miette::Diagnostic::help(&error).is_some_and(|hint| hint.to_string().contains("step_loss")));

    for loss in [cov, PolicyLoss { kl: Some(kl(KlEstimator::K2, false)), ..grpo() }] {
        let mut bad = step();
        bad.reference[4] = f32::NAN;
        let error = bad.parts(&loss, &[0..1, 1..3], &draw).unwrap_err();
        assert_eq!((error.micro_batch(), error.row()), (Some(1), Some(1)), "{error:?}");
        let text = error.to_string();
        assert_eq!(text, "micro-batch 1: reference log-probability is NaN at row 1, policy token 2");
    }
    let whole = step();
    let rows = whole.rows(0..3);
    let batch = whole.batch(&rows, 0..3);
    let error = step_loss(&grpo(), &[batch], &[], &whole.counts(), &draw).unwrap_err();
    assert_eq!(error, AlgoError::MicroBatches { batches: 1, scores: 0 });
    assert_eq!(step_loss(&grpo(), &[], &[], &whole.counts(), &draw).unwrap().len(), 0);
}
