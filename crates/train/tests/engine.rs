//! The embedded engine: splits into micro-batches, hand-over of weights, saving and going on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use rloom_algo::{
    Aggregation, AlgoError, Algorithm, GlobalCounts, LossBatch, LossGrad, Method, PolicyLoss, TokenScores,
    policy_loss,
};
use rloom_core::{
    Author, PolicyVersion, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory,
};
use rloom_model::{Family, GenerationConfig, Model, NewModel, OptimizerSettings};
use rloom_ops::Ctx;
use rloom_train::{
    EmbeddedTrainEngine, LossFn, OptimStep, PackedBatch, TrainEngine, TrainError, Which, pack,
};

const VOCAB: u64 = 40;

fn model() -> Arc<Model> {
    let shape = NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 32,
        heads: 4,
        kv_heads: Some(2),
        head_dim: None,
        intermediate_size: 48,
        max_positions: 64,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.2,
    };
    Arc::new(Model::init(&shape.config(VOCAB as usize).unwrap(), 7))
}

fn trajectory(ticket: u64) -> Trajectory {
    let stream = RandomKey::new(5, 0, Purpose::Generator, ticket).stream();
    let prompt = 1 + stream.below(1000, 6) as usize;
    let n = prompt + 1 + stream.below(1001, 12) as usize;
    Trajectory {
        key: SampleKey { ticket: Ticket(ticket), sample: 0, segment: 0 },
        tokens: (0..n as u64).map(|i| stream.below(i, VOCAB) as u32).collect(),
        spans: vec![
            Span { author: Author::Prompt, range: 0..prompt, temperature: 1.0 },
            Span { author: Author::Policy, range: prompt..n, temperature: 0.8 },
        ],
        logprobs: (0..n - prompt).map(|i| -3.5 - 0.1 * stream.uniform(2000 + i as u64) as f32).collect(),
        versions: vec![],
        stop: StopReason::Length,
    }
}

/// A policy loss whose advantages are a function of the ticket.
struct Loss {
    spec: PolicyLoss,
    batches: Vec<PackedBatch>,
    counts: GlobalCounts,
    spoil: bool,
}

impl Loss {
    fn new(spec: PolicyLoss, trajectories: &[Trajectory], budget: usize) -> Self {
        let lengths = trajectories.iter().map(Trajectory::policy_tokens);
        let counts = GlobalCounts::of_lengths(lengths, 16);
        Self { spec, batches: pack(trajectories, budget).unwrap(), counts, spoil: false }
    }
}

impl LossFn for Loss {
    fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let packed = &self.batches[micro_batch];
        let mut advantage = vec![0.0; scores.logprob.len()];
        for (key, rows) in packed.keys.iter().zip(&packed.sequences) {
            advantage[rows.clone()].fill(key.ticket.0 as f32 * 0.3 - 1.0);
        }
        let batch = LossBatch {
            rows: &packed.sequences,
            advantage: Some(&advantage),
            old_logprob: Some(&packed.behavior_logprob),
            behavior_logprob: Some(&packed.behavior_logprob),
            ..LossBatch::default()
        };
        let mut grad = policy_loss(&self.spec, &batch, scores, &self.counts)?;
        if self.spoil {
            grad.d_logprob[0] = f32::INFINITY;
        }
        Ok(grad)
    }
}

fn engine(threads: usize) -> EmbeddedTrainEngine {
    let settings = OptimizerSettings { learning_rate: 1e-2, ..OptimizerSettings::default() };
    EmbeddedTrainEngine::new(Ctx::new(threads).unwrap(), model(), None, settings, GenerationConfig::default())
}

fn spec(aggregation: Aggregation) -> PolicyLoss {
    let mut loss = Algorithm::preset(Method::Grpo).loss;
    loss.aggregation = aggregation;
    loss.entropy_coef = 0.02;
    loss
}

/// The accumulated gradient itself is compared, tensor by tensor: AdamW's first step would hide its scale.
#[test]
fn gradients_do_not_depend_on_the_split() {
    let trajectories: Vec<Trajectory> = (0..9).map(trajectory).collect();
    for aggregation in Aggregation::ALL {
        let gradients = |budget: usize| {
            let loss = Loss::new(spec(aggregation), &trajectories, budget);
            let mut engine = engine(2);
            let report = engine.accumulate(&loss.batches, &loss).unwrap();
            let named: Vec<(String, Vec<f32>)> =
                engine.gradients().named().map(|(s, v)| (s.name.clone(), v.to_vec())).collect();
            (loss.batches.len(), report.terms.loss(), named)
        };
        let (one, whole_loss, whole) = gradients(10_000);
        assert_eq!(one, 1);
        for budget in [40, 20, 1] {
            let (parts, loss, split) = gradients(budget);
            assert!(parts > 1);
            assert!((loss - whole_loss).abs() <= 1e-9 * whole_loss.abs().max(1.0), "{aggregation:?}");
            for ((name, a), (_, b)) in whole.iter().zip(&split) {
                let norm = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let difference = a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
                assert!(norm > 0.0, "{name} has a gradient");
                assert!(difference <= 1e-5 * norm, "{aggregation:?} {budget} {name}: {difference} of {norm}");
            }
        }
    }
}

fn weights(engine: &EmbeddedTrainEngine) -> Vec<u32> {
    engine.policy().named_tensors().flat_map(|(_, v)| v.iter().map(|x| x.to_bits())).collect()
}

fn train(engine: &mut EmbeddedTrainEngine, steps: std::ops::Range<u64>) {
    for step in steps {
        let trajectories: Vec<Trajectory> = (step * 4..step * 4 + 4).map(trajectory).collect();
        let loss = Loss::new(spec(Aggregation::TokenMean), &trajectories, 30);
        engine.accumulate(&loss.batches, &loss).unwrap();
        engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap();
    }
}

#[test]
fn bytes_do_not_depend_on_threads_or_on_a_restart() {
    let mut reference = engine(1);
    train(&mut reference, 0..6);
    let mut threaded = engine(3);
    train(&mut threaded, 0..6);
    assert_eq!(weights(&reference), weights(&threaded));

    let folder = tempfile::tempdir().unwrap();
    let mut first = engine(2);
    train(&mut first, 0..3);
    first.save(folder.path()).unwrap();
    let mut second = engine(2);
    second.restore(folder.path()).unwrap();
    train(&mut second, 3..6);
    assert_eq!(weights(&reference), weights(&second));
}

#[test]
fn what_is_published_never_changes_and_is_not_copied_while_nobody_holds_it() {
    let mut engine = engine(1);
    engine.set_version(PolicyVersion(3));
    let published = engine.publish().unwrap();
    assert_eq!(published.version, PolicyVersion(3));
    assert!(Arc::ptr_eq(&published.model, engine.policy()), "publishing copies nothing");
    let before = weights(&engine);
    train(&mut engine, 0..1);
    let kept: Vec<u32> =
        published.model.named_tensors().flat_map(|(_, v)| v.iter().map(|x| x.to_bits())).collect();
    assert_eq!(kept, before, "a held version stays as it was");
    assert_ne!(weights(&engine), before);

    drop(published);
    let place = Arc::as_ptr(engine.policy());
    train(&mut engine, 1..2);
    assert_eq!(place, Arc::as_ptr(engine.policy()), "nobody sampled: the step wrote in place");
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_names_the_samples() {
    let mut engine = engine(1);
    let before = weights(&engine);
    let trajectories: Vec<Trajectory> = (0..2).map(trajectory).collect();
    let mut loss = Loss::new(spec(Aggregation::TokenMean), &trajectories, 100);
    loss.spoil = true;
    engine.accumulate(&loss.batches, &loss).unwrap();
    let error = engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap_err();
    assert_eq!(error.to_string(), "the gradient is not finite (samples 0/0, 1/0)");
    assert_eq!(before, weights(&engine));
    train(&mut engine, 0..1);
    assert_ne!(before, weights(&engine), "the engine is usable afterwards");
}

#[test]
fn scores_without_a_gradient_are_those_with_one() {
    struct Seen(std::sync::Mutex<Vec<f32>>, Loss);
    impl LossFn for Seen {
        fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
            self.0.lock().unwrap().extend(&scores.logprob);
            self.1.loss(micro_batch, scores)
        }
    }
    let trajectories: Vec<Trajectory> = (0..5).map(trajectory).collect();
    let seen = Seen(std::sync::Mutex::default(), Loss::new(spec(Aggregation::TokenMean), &trajectories, 25));
    let mut engine = engine(2);
    let scores = engine.score(Which::Policy, &seen.1.batches).unwrap();
    engine.accumulate(&seen.1.batches, &seen).unwrap();
    let flat: Vec<f32> = scores.iter().flat_map(|s| s.logprob.iter().copied()).collect();
    assert_eq!(flat, *seen.0.lock().unwrap());
    assert!(matches!(engine.score(Which::Reference, &seen.1.batches), Err(TrainError::NoReference)));
    assert!(matches!(
        EmbeddedTrainEngine::step(&mut self::engine(1), &OptimStep { learning_rate: 0.1 }),
        Err(TrainError::NothingAccumulated)
    ));
}
