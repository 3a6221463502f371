//! Distillation steps of the embedded engine.

use std::sync::Arc;

use rloom_algo::{
    Algorithm, AlgorithmSettings, DistillationLoss, GlobalCounts, LossInputs, LossStep, Method, Objective,
    TeacherTop,
};
use rloom_core::{Author, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{LossReport, PackedBatch, TrainEngine, TrainError, Which, pack};
use rloom_model::{GenerationConfig, Model, NewModel, OptimizerSettings};
use rloom_ops::Ctx;

use super::model::{VOCABULARY, model};

fn loss(settings: &serde_json::Value) -> DistillationLoss {
    let settings: AlgorithmSettings =
        serde_json::from_value(serde_json::json!({ "distillation": settings })).unwrap();
    let algorithm = Algorithm::resolve(Method::Distill, &settings, 0).unwrap();
    let aggregation = algorithm.loss.aggregation;
    DistillationLoss { distillation: algorithm.distillation.unwrap(), aggregation }
}

/// A teacher of another size.
fn teacher() -> Arc<Model> {
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "layers": 3, "hidden_size": 20, "heads": 2, "intermediate_size": 24, "max_positions": 64,
        "initializer_range": 0.3,
    }))
    .unwrap();
    Arc::new(Model::init(&new.config(VOCABULARY as usize).unwrap(), 9))
}

fn engine(threads: usize) -> EmbeddedTrainEngine {
    let settings = OptimizerSettings { learning_rate: 1e-2, ..OptimizerSettings::default() };
    let ctx = Ctx::new(threads).unwrap();
    EmbeddedTrainEngine::new(ctx, model(), None, settings, GenerationConfig::default())
}

fn student(threads: usize) -> EmbeddedTrainEngine {
    let mut engine = engine(threads);
    engine.set_teacher(teacher());
    engine
}

/// Two samples of each of three prompts.
fn trajectories() -> Vec<Trajectory> {
    let one = |number: u64| {
        let stream = RandomKey::new(5, 0, Purpose::Generator, number).stream();
        let shared = RandomKey::new(6, 0, Purpose::Generator, number / 2).stream();
        let (prompt, n) = (4, 5 + stream.below(1001, 12) as usize);
        let token = |i: usize| {
            let of = if i < prompt { &shared } else { &stream };
            of.below(i as u64, VOCABULARY.into()) as u32
        };
        Trajectory {
            key: SampleKey { ticket: Ticket(number / 2), sample: (number % 2) as u32, segment: 0 },
            agent: None,
            tokens: (0..n).map(token).collect(),
            spans: vec![
                Span::new(Author::Prompt, 0..prompt),
                Span::new(Author::Policy, prompt..n).with_temperature(0.8),
            ],
            logprobs: vec![0.0; n - prompt],
            versions: vec![],
            stop: StopReason::Length,
            attachments: Vec::new(),
        }
    };
    (0..6).map(one).collect()
}

fn counts() -> GlobalCounts {
    GlobalCounts::of_lengths(trajectories().iter().map(Trajectory::policy_tokens), 0)
}

fn inputs(step: &[PackedBatch]) -> Vec<LossInputs> {
    let of = |batch: &PackedBatch| LossInputs { rows: batch.sequences.clone(), ..LossInputs::default() };
    step.iter().map(of).collect()
}

fn accumulate(
    engine: &mut EmbeddedTrainEngine,
    loss: DistillationLoss,
    step: &[PackedBatch],
    inputs: &[LossInputs],
) -> Result<LossReport, TrainError> {
    engine.accumulate(step, &LossStep::new(Objective::Distillation(loss), counts(), inputs))
}

/// A step over the teacher's k most probable tokens.
fn accumulate_top(
    engine: &mut EmbeddedTrainEngine,
    loss: DistillationLoss,
    step: &[PackedBatch],
) -> LossReport {
    let (k, temperature) = (loss.distillation.top_k().unwrap(), loss.distillation.temperature());
    let found = engine.teacher_top(step, k, temperature).unwrap();
    let mut inputs = inputs(step);
    let with = |(batch, top): (&PackedBatch, &rloom_engine::TopTokens)| {
        batch.clone().with_candidates(top.candidates.clone()).unwrap()
    };
    let step: Vec<PackedBatch> = step.iter().zip(&found).map(with).collect();
    for (inputs, top) in inputs.iter_mut().zip(found) {
        inputs.teacher = Some(TeacherTop { k: top.candidates.k(), logprob: top.logprob });
    }
    accumulate(engine, loss, &step, &inputs).unwrap()
}

fn gradient(engine: &EmbeddedTrainEngine) -> Vec<f32> {
    engine.gradients().named().flat_map(|(_, values)| values.to_vec()).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (apart / b.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

const KINDS: [&str; 3] = [
    r#"{"kind":"forward_kl","temperature":1.3}"#,
    r#"{"kind":"reverse_kl","temperature":0.7}"#,
    r#"{"kind":"jensen_shannon","beta":0.3}"#,
];

fn parsed(kind: &str) -> serde_json::Value {
    serde_json::from_str(kind).unwrap()
}

/// With all tokens among the most probable ones the rest has no probability: the loss over the whole vocabulary, by another way.
#[test]
fn all_most_probable_tokens_are_the_vocabulary() {
    let step = pack(&trajectories(), 40).unwrap();
    for kind in KINDS {
        let (mut whole, mut some) = (student(2), student(2));
        let report = accumulate(&mut whole, loss(&parsed(kind)), &step, &inputs(&step)).unwrap();
        let mut settings = parsed(kind);
        settings["top_k"] = VOCABULARY.into();
        let top = accumulate_top(&mut some, loss(&settings), &step);
        let (a, b) = (report.terms.finish(&counts()).unwrap(), top.terms.finish(&counts()).unwrap());
        assert!((a.loss - b.loss).abs() < 1e-6 * a.loss.max(0.1), "{kind}: {} {}", a.loss, b.loss);
        assert!(a.loss > 0.01 && a.teacher_divergence == Some(a.loss), "{kind}: {a:?}");
        let far = distance(&gradient(&some), &gradient(&whole));
        assert!(far < 1e-5, "{kind}: {far:e}");
        settings["top_k"] = 3.into();
        let fewer = accumulate_top(&mut student(2), loss(&settings), &step);
        assert!(fewer.terms.loss() < a.loss, "{kind}: tokens that are not told apart cannot differ more");
    }
}

/// The gradient of a step does not depend on the threads; by micro-batches it differs by rounding alone.
#[test]
fn threads_and_splits_change_nothing() {
    for kind in KINDS {
        let run = |threads: usize, budget: usize| {
            let step = pack(&trajectories(), budget).unwrap();
            let mut engine = student(threads);
            let report = accumulate(&mut engine, loss(&parsed(kind)), &step, &inputs(&step)).unwrap();
            (report.terms.finish(&counts()).unwrap().loss, gradient(&engine))
        };
        let (value, whole) = run(1, 1000);
        for threads in [2, 3] {
            let (own, again) = run(threads, 1000);
            assert_eq!((own, &again), (value, &whole), "{kind}: {threads} threads");
        }
        for budget in [20, 40] {
            let (own, split) = run(2, budget);
            assert_eq!(own, value, "{kind}");
            assert!(distance(&split, &whole) < 1e-6, "{kind}");
        }
    }
}

/// Steps bring the student nearer.
#[test]
fn steps_reduce_the_divergence() {
    let step = pack(&trajectories(), 40).unwrap();
    for kind in KINDS {
        let mut engine = student(2);
        let mut losses = Vec::new();
        for _ in 0..20 {
            let report = accumulate(&mut engine, loss(&parsed(kind)), &step, &inputs(&step)).unwrap();
            losses.push(report.terms.loss());
            engine.step(&rloom_engine::OptimStep { learning_rate: 1e-2 }).unwrap();
        }
        assert!(losses[19] < 0.5 * losses[0], "{kind}: {losses:?}");
    }
}

#[test]
fn scores_of_the_teacher_are_its_own() {
    let step = pack(&trajectories(), 40).unwrap();
    let mut alone = EmbeddedTrainEngine::new(
        Ctx::new(1).unwrap(),
        teacher(),
        None,
        OptimizerSettings::default(),
        GenerationConfig::default(),
    );
    let expected = alone.score(Which::Policy, &step).unwrap();
    assert_eq!(student(2).score(Which::Teacher, &step).unwrap(), expected);
}

#[test]
fn a_loss_without_its_teacher_is_an_error() {
    let step = pack(&trajectories(), 40).unwrap();
    let mut engine = engine(1);
    let error = |result: Result<LossReport, TrainError>| result.unwrap_err().to_string();
    let whole = loss(&serde_json::json!("reverse_kl"));
    assert_eq!(error(accumulate(&mut engine, whole, &step, &inputs(&step))), "no teacher is loaded");
    assert!(matches!(engine.score(Which::Teacher, &step), Err(TrainError::NoTeacher)));
    assert!(matches!(engine.teacher_top(&step, 2, 1.0), Err(TrainError::NoTeacher)));
    let top = loss(&serde_json::json!({ "top_k": 2 }));
    let text = error(accumulate(&mut student(1), top, &step, &inputs(&step)));
    assert!(text.contains("teacher log-probability"), "{text}");
    assert!(gradient(&engine).iter().all(|&x| x == 0.0));
}
