//! Value heads and critics: learning, publication and restarts.

use std::fs;

use super::super::loss::StepLoss;
use crate::EmbeddedTrainEngine;
use crate::model_of;
use rloom_algo::{Aggregation, AlgoError, LossGrad, Scope, TokenScores};
use rloom_core::{PolicyVersion, Trajectory};
use rloom_engine::{Form, OptimStep, PackedBatch, TrainEngine, TrainError, Which, pack};
use rloom_model::{BatchError, GenerationConfig, Model, OutputHeads};
use rloom_ops::Ctx;

use super::support::{Loss, model, settings, spec, trajectory, weights};

/// Σ ½(value − target)² over the step, divided by its tokens; for a policy with a value head in addition to the policy loss.
/// The target is a function of the ticket.
struct Squared {
    policy: Loss,
    heads: OutputHeads,
}

impl Squared {
    fn new(trajectories: &[Trajectory], budget: usize, heads: OutputHeads) -> Self {
        Self { policy: Loss::new(spec(Aggregation::TokenMean), trajectories, budget), heads }
    }

    fn targets(batch: &PackedBatch) -> Vec<f32> {
        let of = |(key, rows): (&rloom_core::SampleKey, &std::ops::Range<usize>)| {
            vec![0.5 + 0.1 * (key.ticket.0 % 3) as f32; rows.len()]
        };
        batch.keys.iter().zip(&batch.sequences).flat_map(of).collect()
    }

    /// Mean squared distance from the targets.
    fn error(&self, scores: &[TokenScores]) -> f32 {
        let squares: Vec<f32> = scores
            .iter()
            .zip(&self.policy.batches)
            .flat_map(|(scores, batch)| {
                let pairs = scores.value.iter().zip(Self::targets(batch));
                pairs.map(|(value, target)| (value - target).powi(2)).collect::<Vec<f32>>()
            })
            .collect();
        squares.iter().sum::<f32>() / squares.len() as f32
    }
}

impl StepLoss for Squared {
    fn scope(&self) -> Scope {
        Scope::Token
    }

    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let targets = Self::targets(&self.policy.batches[micro_batch]);
        let n = self.policy.counts.tokens as f32;
        let d_value = scores.value.iter().zip(targets).map(|(value, target)| (value - target) / n).collect();
        Ok(match self.heads {
            OutputHeads::Value => LossGrad { d_value, ..LossGrad::default() },
            _ => LossGrad { d_value, ..self.policy.evaluate(micro_batch, scores)? },
        })
    }

    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        scores.iter().enumerate().map(|(micro_batch, scores)| self.evaluate(micro_batch, scores)).collect()
    }
}

fn engine(heads: OutputHeads, threads: usize) -> EmbeddedTrainEngine {
    let ctx = Ctx::new(threads).unwrap();
    match heads {
        OutputHeads::Value => EmbeddedTrainEngine::critic(ctx, &model(), settings()),
        _ => {
            EmbeddedTrainEngine::with_value_head(ctx, model(), None, settings(), GenerationConfig::default())
        }
    }
}

fn train(engine: &mut EmbeddedTrainEngine, steps: std::ops::Range<u64>) {
    let heads = engine.policy().config().output_heads;
    for step in steps {
        let trajectories: Vec<Trajectory> = (step * 4..step * 4 + 4).map(trajectory).collect();
        let loss = Squared::new(&trajectories, 30, heads);
        engine.accumulate_loss(&loss.policy.batches, &loss).unwrap();
        engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap();
    }
}

const BOTH: [OutputHeads; 2] = [OutputHeads::LanguageAndValue, OutputHeads::Value];

#[test]
fn values_start_at_zero_and_learn() {
    for heads in BOTH {
        let mut engine = engine(heads, 2);
        let trajectories: Vec<Trajectory> = (0..6).map(trajectory).collect();
        let loss = Squared::new(&trajectories, 30, heads);
        let scores = engine.score(Which::Policy, &loss.policy.batches).unwrap();
        for (scores, batch) in scores.iter().zip(&loss.policy.batches) {
            assert_eq!(scores.value, vec![0.0; batch.rows.len()]);
            assert_eq!(scores.last_value, vec![0.0; batch.keys.len()]);
            let of_language = if heads.language() { batch.rows.len() } else { 0 };
            assert_eq!((scores.logprob.len(), scores.entropy.len()), (of_language, of_language));
        }
        let before = loss.error(&scores);
        for _ in 0..20 {
            engine.accumulate_loss(&loss.policy.batches, &loss).unwrap();
            engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap();
        }
        let after = loss.error(&engine.score(Which::Policy, &loss.policy.batches).unwrap());
        assert!(after < 0.2 * before, "{heads:?}: {after} of {before}");
    }
}

/// A loss receives the scores that are computed without a gradient, last values included.
#[test]
fn scores_without_a_gradient_are_those_with_one() {
    struct Seen(std::sync::Mutex<Vec<TokenScores>>, Squared);
    impl StepLoss for Seen {
        fn scope(&self) -> Scope {
            self.1.scope()
        }
        fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
            self.0.lock().unwrap().push(scores.clone());
            self.1.evaluate(micro_batch, scores)
        }
        fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
            self.1.evaluate_step(scores)
        }
    }
    for heads in BOTH {
        let mut engine = engine(heads, 2);
        train(&mut engine, 0..2);
        let trajectories: Vec<Trajectory> = (0..5).map(trajectory).collect();
        let seen = Seen(std::sync::Mutex::default(), Squared::new(&trajectories, 25, heads));
        let scores = engine.score(Which::Policy, &seen.1.policy.batches).unwrap();
        engine.accumulate_loss(&seen.1.policy.batches, &seen).unwrap();
        assert_eq!(scores, *seen.0.lock().unwrap());
        let last: Vec<f32> = scores.iter().flat_map(|s| s.last_value.iter().copied()).collect();
        assert_eq!(last.len(), 5);
        assert!(last.iter().all(|&value| value != 0.0));
    }
}

#[test]
fn bytes_do_not_depend_on_threads_or_on_a_restart() {
    for heads in BOTH {
        let mut reference = engine(heads, 1);
        train(&mut reference, 0..6);
        let mut threaded = engine(heads, 3);
        train(&mut threaded, 0..6);
        assert_eq!(weights(&reference), weights(&threaded), "{heads:?}");

        let folder = tempfile::tempdir().unwrap();
        let mut first = engine(heads, 2);
        train(&mut first, 0..3);
        first.save(folder.path()).unwrap();
        let head = folder.path().join("trainer/value_head.safetensors");
        assert_eq!(head.exists(), heads == OutputHeads::LanguageAndValue, "a critic's is in its folder");
        let mut second = engine(heads, 2);
        second.restore(folder.path()).unwrap();
        assert_eq!(second.policy().config().output_heads, heads);
        train(&mut second, 3..6);
        assert_eq!(weights(&reference), weights(&second), "{heads:?}");

        if heads == OutputHeads::LanguageAndValue {
            fs::remove_file(&head).unwrap();
            let text = second.restore(folder.path()).unwrap_err().to_string();
            assert!(text.contains("value_head.safetensors"), "{text}");
        }
    }
}

/// Continuing from this process and from the checkpoint are equivalent.
#[test]
fn the_returned_policy_is_the_one_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = engine(OutputHeads::LanguageAndValue, 1);
    train(&mut engine, 0..2);
    engine.save(folder.path()).unwrap();
    let handed = engine.into_policy();
    let opened = Model::load(folder.path()).unwrap();
    assert_eq!(handed.config().output_heads, OutputHeads::Language);
    assert!(handed.named_tensors().eq(opened.named_tensors()));
}

#[test]
fn a_value_head_starts_at_zero_and_a_critic_is_not_published() {
    let mut trained = engine(OutputHeads::LanguageAndValue, 1);
    train(&mut trained, 0..2);
    let start = trained.policy().clone();
    let again = EmbeddedTrainEngine::with_value_head(
        Ctx::serial(),
        start,
        None,
        settings(),
        GenerationConfig::default(),
    );
    let head: Vec<f32> = again
        .policy()
        .named_tensors()
        .filter(|(spec, _)| spec.is_value_head())
        .flat_map(|(_, values)| values.to_vec())
        .collect();
    assert_eq!(head, vec![0.0; 33]);
    let published = trained.publish(PolicyVersion(0), Form::Memory).unwrap();
    assert_eq!(model_of(&published).unwrap().config().output_heads, OutputHeads::LanguageAndValue);
    let error = engine(OutputHeads::Value, 1).publish(PolicyVersion(0), Form::Memory).unwrap_err();
    assert!(matches!(error, TrainError::CriticPublished));
}

/// A loss with coefficients of fixed lengths.
struct Lengths([usize; 3]);

impl StepLoss for Lengths {
    fn scope(&self) -> Scope {
        Scope::Token
    }
    fn evaluate(&self, _: usize, _: &TokenScores) -> Result<LossGrad, AlgoError> {
        let [d_logprob, d_entropy, d_value] = self.0.map(|n| vec![0.1; n]);
        Ok(LossGrad { d_logprob, d_entropy, d_value, ..LossGrad::default() })
    }
    fn evaluate_step(&self, _: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        Ok(Vec::new())
    }
}

#[test]
fn coefficients_of_another_head_are_errors() {
    let batches = pack(&[trajectory(0)], 100).unwrap();
    let n = batches[0].rows.len();
    let failure = |heads, lengths| engine(heads, 1).accumulate_loss(&batches, &Lengths(lengths)).unwrap_err();
    for (heads, lengths, expected) in [
        (OutputHeads::Value, [n, n, n], BatchError::NoHead { what: "d_logprob" }),
        (OutputHeads::Value, [0, 0, 0], BatchError::Count { what: "d_value", len: 0, rows: n }),
        (OutputHeads::LanguageAndValue, [n, n, 0], BatchError::Count { what: "d_value", len: 0, rows: n }),
    ] {
        match failure(heads, lengths) {
            TrainError::Batch(cause) => {
                let cause: &(dyn std::error::Error + 'static) = cause.as_ref();
                assert_eq!(cause.downcast_ref(), Some(&expected));
            }
            other => panic!("{other}"),
        }
    }
    engine(OutputHeads::Value, 1).accumulate_loss(&batches, &Lengths([0, 0, n])).unwrap();
}

#[test]
fn a_value_that_is_not_finite_names_the_samples() {
    let folder = tempfile::tempdir().unwrap();
    let trajectory = trajectory(3);
    let last = *trajectory.tokens.last().unwrap();
    assert_eq!(trajectory.tokens.iter().filter(|&&token| token == last).count(), 1);
    // The bias reaches every value; the embedding of the last token reaches the last value alone.
    for (heads, file, tensor, element) in [
        (OutputHeads::LanguageAndValue, "trainer/value_head.safetensors", "score.bias", 0),
        (OutputHeads::Value, "model.safetensors", "score.bias", 0),
        (OutputHeads::Value, "model.safetensors", "model.embed_tokens.weight", last as usize * 32),
    ] {
        let mut engine = engine(heads, 1);
        engine.save(folder.path()).unwrap();
        let path = folder.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let names: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let at = 8 + header + names[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 4 * element;
        bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        engine.restore(folder.path()).unwrap();
        let loss = Squared::new(std::slice::from_ref(&trajectory), 100, heads);
        let batches = &loss.policy.batches;
        let messages = [
            engine.score(Which::Policy, batches).unwrap_err().to_string(),
            engine.accumulate_loss(batches, &loss).unwrap_err().to_string(),
        ];
        assert_eq!(messages, ["the value is not finite (samples 3/0)"; 2]);
    }
}
