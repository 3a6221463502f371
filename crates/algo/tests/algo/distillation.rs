//! Distillation: goldens of TRL over the most probable tokens, finite differences, equal distributions, splits, settings.

use rloom_algo::{
    Aggregation, AlgoError, Algorithm, AlgorithmSettings, DistillationKind, DistillationLoss, GlobalCounts,
    LossBatch, LossGrad, LossInputs, LossStep, Method, Objective, TeacherTop, TokenScores,
    VocabularyDivergence, distillation_loss,
};
use rloom_core::metric;
use serde::Deserialize;
use serde_json::{Value, json};

fn resolved(distillation: &Value) -> Result<Algorithm, AlgoError> {
    let settings: AlgorithmSettings =
        serde_json::from_value(json!({ "distillation": distillation })).unwrap();
    Algorithm::resolve(Method::Distill, &settings, 0)
}

fn loss(distillation: &Value) -> DistillationLoss {
    let algorithm = resolved(distillation).unwrap();
    DistillationLoss {
        distillation: algorithm.distillation.unwrap(),
        aggregation: algorithm.loss.aggregation,
    }
}

#[derive(Deserialize)]
struct Goldens {
    top: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    kind: String,
    beta: f64,
    k: usize,
    tokens: usize,
    student: Vec<f32>,
    teacher: Vec<f32>,
    loss: f64,
    d_logprob: Vec<f64>,
}

/// A micro-batch of one sequence, whose positions have k candidates.
fn top(loss: &DistillationLoss, k: usize, student: &[f32], teacher: &[f32]) -> LossGrad {
    let tokens = student.len() / k;
    let teacher = TeacherTop { k, logprob: teacher.to_vec() };
    let rows = 0..tokens;
    let batch =
        LossBatch { rows: std::slice::from_ref(&rows), teacher: Some(&teacher), ..LossBatch::default() };
    let scores = TokenScores {
        logprob: vec![-1.0; tokens],
        entropy: vec![0.5; tokens],
        candidate_logprob: student.to_vec(),
        ..TokenScores::default()
    };
    distillation_loss(loss, &batch, &scores, &GlobalCounts::of_lengths([tokens], 0)).unwrap()
}

fn settings_of(kind: &str, beta: f64, k: usize) -> Value {
    if kind == "jensen_shannon" {
        json!({ "kind": kind, "top_k": k, "beta": beta })
    } else {
        json!({ "kind": kind, "top_k": k })
    }
}

#[test]
fn the_most_probable_tokens_as_in_trl() {
    let goldens: Goldens = serde_json::from_str(include_str!("../golden/distillation.json")).unwrap();
    assert!(goldens.top.len() >= 40);
    for case in goldens.top {
        let loss = loss(&settings_of(&case.kind, case.beta, case.k));
        let grad = top(&loss, case.k, &case.student, &case.teacher);
        assert_eq!(case.tokens, case.student.len() / case.k);
        let (got, name) = (grad.terms.loss(), &case.name);
        assert!((got - case.loss).abs() <= 1e-9 + 1e-7 * case.loss, "{name}: {got} {}", case.loss);
        assert!(grad.d_logprob.is_empty() && grad.d_entropy.is_empty() && grad.d_divergence.is_empty());
        for (got, want) in grad.d_candidate_logprob.iter().zip(&case.d_logprob) {
            assert!((f64::from(*got) - want).abs() <= 1e-7 * want.abs().max(0.1), "{name}: {got} {want}");
        }
    }
}

const KINDS: [(&str, f64); 4] =
    [("forward_kl", 0.0), ("reverse_kl", 1.0), ("jensen_shannon", 0.5), ("jensen_shannon", 0.2)];

#[test]
fn derivatives_are_those_of_the_value() {
    let student = [-0.4_f32, -1.9, -2.6, -0.7, -0.9, -3.0];
    let teacher = [-0.9_f32, -1.1, -2.0, -0.2, -2.5, -3.5];
    for (kind, beta) in KINDS {
        let loss = loss(&settings_of(kind, beta, 3));
        let grad = top(&loss, 3, &student, &teacher);
        for i in 0..student.len() {
            let moved = |by: f32| {
                let mut student = student;
                student[i] += by;
                (f64::from(student[i]), top(&loss, 3, &student, &teacher).terms.loss())
            };
            let ((high, above), (low, below)) = (moved(1e-3), moved(-1e-3));
            let slope = (above - below) / (high - low);
            let got = f64::from(grad.d_candidate_logprob[i]);
            assert!((got - slope).abs() < 2e-5, "{kind} {beta}, {i}: {got} {slope}");
        }
    }
}

/// Exactly 0, in value and derivative; also where the tokens have all of the probability.
#[test]
fn a_student_that_equals_its_teacher_has_no_loss() {
    for (kind, beta) in KINDS {
        for logprobs in [[-0.5_f32, -1.5, -3.0], [0.0, -90.0, -100.0]] {
            let grad = top(&loss(&settings_of(kind, beta, 3)), 3, &logprobs, &logprobs);
            assert_eq!(grad.terms.loss(), 0.0, "{kind}");
            assert!(grad.d_candidate_logprob.iter().all(|&d| d == 0.0), "{kind}: {grad:?}");
        }
        let whole = json!({ "kind": kind });
        let (inputs, scores) = vocabulary(&[&[0.0, 0.0]]);
        let counts = GlobalCounts::of_lengths([2], 0);
        let grad = distillation_loss(&loss(&whole), &inputs.batch(), &scores, &counts).unwrap();
        assert_eq!(grad.terms.loss(), 0.0);
    }
}

/// Sequences with these divergences.
fn vocabulary(sequences: &[&[f32]]) -> (LossInputs, TokenScores) {
    let divergence = sequences.concat();
    let mut end = 0;
    let rows = sequences.iter().map(|own| {
        end += own.len();
        end - own.len()..end
    });
    let inputs = LossInputs { rows: rows.collect(), ..LossInputs::default() };
    let tokens = divergence.len();
    let scores = TokenScores {
        logprob: vec![-1.0; tokens],
        entropy: vec![0.5; tokens],
        divergence,
        ..TokenScores::default()
    };
    (inputs, scores)
}

/// The loss is a mean over the tokens of the step, however they are divided.
#[test]
fn a_split_changes_nothing() {
    let sequences: [&[f32]; 4] = [&[0.3, 0.1], &[0.7], &[0.2, 0.25, 1.5], &[0.05]];
    let counts = GlobalCounts::of_lengths(sequences.iter().map(|own| own.len()), 0);
    for aggregation in Aggregation::ALL.into_iter().filter(|&mode| mode != Aggregation::ConstantLength) {
        let loss = DistillationLoss { aggregation, ..loss(&json!("reverse_kl")) };
        let run = |cuts: &[usize]| {
            let parts: Vec<_> = cuts.windows(2).map(|cut| vocabulary(&sequences[cut[0]..cut[1]])).collect();
            let (inputs, scores): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            let step = LossStep::new(Objective::Distillation(loss), counts, &inputs);
            let text = serde_json::to_string(&step).unwrap();
            assert_eq!(serde_json::from_str::<LossStep<'_>>(&text).unwrap(), step);
            let grads = step.evaluate_step(&scores).unwrap();
            let mut terms = grads[0].terms.clone();
            grads[1..].iter().for_each(|grad| terms.merge(&grad.terms));
            let slopes: Vec<f32> = grads.iter().flat_map(|grad| &grad.d_divergence).copied().collect();
            (terms.finish(&counts).unwrap(), slopes)
        };
        let (whole, slopes) = run(&[0, 4]);
        for cuts in [&[0, 1, 4][..], &[0, 2, 3, 4], &[0, 1, 2, 3, 4]] {
            let (metrics, own) = run(cuts);
            assert_eq!((metrics.loss, metrics.teacher_divergence), (whole.loss, whole.teacher_divergence));
            assert_eq!(own, slopes, "{aggregation:?} {cuts:?}");
        }
        if aggregation == Aggregation::TokenMean {
            assert!((whole.loss - 3.1 / 7.0).abs() < 1e-7);
            assert!(slopes.iter().all(|&slope| slope == 1.0 / 7.0));
        }
        let named = whole.named();
        let divergence = named.iter().find(|(name, _)| *name == metric::TEACHER_DIVERGENCE).unwrap().1;
        assert!((divergence - 3.1 / 7.0).abs() < 1e-7);
    }
}

/// Masked sequences count, and have no coefficients.
#[test]
fn masked_sequences_have_no_gradient() {
    let (mut inputs, scores) = vocabulary(&[&[0.3, 0.1], &[0.7, 0.5]]);
    inputs.masked = vec![true, false];
    let counts = GlobalCounts::of_lengths([2, 2], 0);
    let grad = distillation_loss(&loss(&json!({})), &inputs.batch(), &scores, &counts).unwrap();
    assert_eq!(grad.d_divergence, [0.0, 0.0, 0.25, 0.25]);
    assert!((grad.terms.loss() - 0.3).abs() < 1e-7);
}

#[test]
fn missing_numbers_are_errors() {
    let counts = GlobalCounts::of_lengths([2], 0);
    let (inputs, scores) = vocabulary(&[&[0.3, 0.1]]);
    let error = |loss: &DistillationLoss, inputs: &LossInputs, scores: &TokenScores| {
        distillation_loss(loss, &inputs.batch(), scores, &counts).unwrap_err().to_string()
    };
    let (whole, some) = (loss(&json!({})), loss(&json!({ "top_k": 2 })));
    let without = TokenScores { divergence: Vec::new(), ..scores.clone() };
    assert_eq!(
        error(&whole, &inputs, &without),
        "the loss reads the divergence from the teacher and none was given"
    );
    assert_eq!(
        error(&some, &inputs, &scores),
        "the loss reads the teacher log-probability and none was given"
    );
    let teacher = Some(TeacherTop { k: 2, logprob: vec![-1.0; 4] });
    let with_teacher = LossInputs { teacher, ..inputs.clone() };
    assert_eq!(
        error(&some, &with_teacher, &scores),
        "the loss reads the candidate log-probability and none was given"
    );
    let infinite = TokenScores { divergence: vec![0.1, f32::INFINITY], ..scores };
    let found = distillation_loss(&whole, &inputs.batch(), &infinite, &counts).unwrap_err();
    assert!(found.is_not_finite(), "{found}");
}

#[test]
fn settings_choose_the_divergence() {
    let whole = |settings: Value| loss(&settings).distillation.over_vocabulary();
    assert_eq!(whole(json!({})), VocabularyDivergence::ForwardKl);
    assert_eq!(whole(json!("reverse_kl")), VocabularyDivergence::ReverseKl);
    let js = json!({ "kind": "jensen_shannon", "beta": 0.3, "temperature": 2.0, "top_k": 8 });
    assert_eq!(whole(js.clone()), VocabularyDivergence::JensenShannon { beta: 0.3 });
    let distillation = loss(&js).distillation;
    assert_eq!(distillation.kind(), DistillationKind::JensenShannon);
    assert_eq!((distillation.temperature(), distillation.top_k()), (2.0, Some(8)));
    assert_eq!(loss(&json!({})).distillation.top_k(), None);
    let sampled = resolved(&json!({ "on_policy_share": 0.5 })).unwrap();
    assert!(sampled.needs_rollouts() && !sampled.needs_reference());
    assert!(!resolved(&json!({})).unwrap().needs_rollouts());
    for (settings, part) in [
        (json!({ "beta": 0.5 }), "distillation.beta"),
        (json!({ "kind": "jensen_shannon", "beta": 1.0 }), "above 0 and below 1"),
        (json!({ "temperature": 0.0 }), "above 0"),
        (json!({ "on_policy_share": 1.5 }), "between 0 and 1"),
        (json!({ "top_k": 5000 }), "at most 1024"),
    ] {
        let error = resolved(&settings).unwrap_err().to_string();
        assert!(error.contains(part), "{settings}: {error}");
    }
    let settings = serde_json::from_value(json!({ "distillation": "reverse_kl" })).unwrap();
    let error = Algorithm::resolve(Method::Grpo, &settings, 0).unwrap_err().to_string();
    assert!(error.contains("only method \"distill\""), "{error}");
}
