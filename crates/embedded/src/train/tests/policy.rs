//! Policies: division into micro-batches, publication, saving and restoring.

use std::sync::Arc;

use super::super::loss::StepLoss;
use crate::EmbeddedTrainEngine;
use crate::model_of;
use rloom_algo::{Aggregation, AlgoError, LossGrad, Scope, TokenScores};
use rloom_core::{PolicyVersion, Trajectory};
use rloom_engine::{Form, OptimStep, TrainEngine, TrainError, Which};

use super::support::{Loss, engine, spec, train, trajectory, weights};

/// Compares the accumulated gradient by tensor: AdamW's first step does not depend on its scale.
#[test]
fn gradients_do_not_depend_on_the_split() {
    let trajectories: Vec<Trajectory> = (0..9).map(trajectory).collect();
    for aggregation in Aggregation::ALL {
        let gradients = |budget: usize| {
            let loss = Loss::new(spec(aggregation), &trajectories, budget);
            let mut engine = engine(2);
            let report = engine.accumulate_loss(&loss.batches, &loss).unwrap();
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
fn published_weights_never_change_and_the_optimizer_writes_in_place() {
    let mut engine = engine(1);
    let published = engine.publish(PolicyVersion(3), Form::Memory).unwrap();
    assert_eq!(published.version, PolicyVersion(3));
    let held = model_of(&published).unwrap();
    let (before, place) = (weights(&engine), Arc::as_ptr(engine.policy()));
    assert!(held.named_tensors().all(|(spec, _)| !spec.name.ends_with("proj.weight")), "no matrices in rows");
    train(&mut engine, 0..1);
    let kept = held.merged();
    let kept: Vec<u32> = kept.named_tensors().flat_map(|(_, v)| v.iter().map(|x| x.to_bits())).collect();
    assert_eq!(kept, before, "published weights are unchanged");
    assert_ne!(weights(&engine), before);
    assert_eq!(place, Arc::as_ptr(engine.policy()), "the weights were copied");
    let exact = model_of(&engine.publish_exact(PolicyVersion(4), Form::Memory).unwrap()).unwrap();
    assert!(Arc::ptr_eq(&exact, engine.policy()), "an exact publication copies nothing");
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_names_the_samples() {
    let mut engine = engine(1);
    let before = weights(&engine);
    let trajectories: Vec<Trajectory> = (0..2).map(trajectory).collect();
    let mut loss = Loss::new(spec(Aggregation::TokenMean), &trajectories, 100);
    loss.spoil = true;
    engine.accumulate_loss(&loss.batches, &loss).unwrap();
    let error = engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap_err();
    assert_eq!(error.to_string(), "the gradient is not finite (samples 0/0, 1/0)");
    assert_eq!(before, weights(&engine));
    train(&mut engine, 0..1);
    assert_ne!(before, weights(&engine), "the engine is usable afterwards");
}

#[test]
fn scores_without_a_gradient_are_those_with_one() {
    struct Seen(std::sync::Mutex<Vec<f32>>, Loss);
    impl StepLoss for Seen {
        fn scope(&self) -> Scope {
            self.1.scope()
        }
        fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
            self.1.evaluate_step(scores)
        }
        fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
            self.0.lock().unwrap().extend(&scores.logprob);
            self.1.evaluate(micro_batch, scores)
        }
    }
    let trajectories: Vec<Trajectory> = (0..5).map(trajectory).collect();
    let seen = Seen(std::sync::Mutex::default(), Loss::new(spec(Aggregation::TokenMean), &trajectories, 25));
    let mut engine = engine(2);
    let scores = engine.score(Which::Policy, &seen.1.batches).unwrap();
    engine.accumulate_loss(&seen.1.batches, &seen).unwrap();
    let flat: Vec<f32> = scores.iter().flat_map(|s| s.logprob.iter().copied()).collect();
    assert_eq!(flat, *seen.0.lock().unwrap());
    assert!(matches!(engine.score(Which::Reference, &seen.1.batches), Err(TrainError::NoReference)));
    assert!(matches!(
        EmbeddedTrainEngine::step(&mut super::support::engine(1), &OptimStep { learning_rate: 0.1 }),
        Err(TrainError::NothingAccumulated)
    ));
}
