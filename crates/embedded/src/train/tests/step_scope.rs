//! Losses over all scores of an optimiser step.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::loss::StepLoss;
use crate::EmbeddedTrainEngine;
use rloom_algo::{Aggregation, AlgoError, LossGrad, Scope, TokenScores};
use rloom_core::Trajectory;
use rloom_engine::{TrainEngine, TrainError, Which};

use super::support::{Loss, engine, spec, trajectory};

/// A token loss with step scope that records its calls.
struct OfStep {
    loss: Loss,
    seen: Mutex<Vec<Vec<TokenScores>>>,
    singly: AtomicUsize,
    forgets: usize,
}

impl OfStep {
    fn new(trajectories: &[Trajectory]) -> Self {
        let loss = Loss::new(spec(Aggregation::SequenceMean), trajectories, 20);
        Self { loss, seen: Mutex::default(), singly: AtomicUsize::new(0), forgets: 0 }
    }
}

impl StepLoss for OfStep {
    fn scope(&self) -> Scope {
        Scope::Step
    }
    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        self.singly.fetch_add(1, Ordering::Relaxed);
        self.loss.evaluate(micro_batch, scores)
    }
    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        self.seen.lock().unwrap().push(scores.to_vec());
        let mut grads = self.loss.evaluate_step(scores)?;
        grads.truncate(grads.len() - self.forgets);
        Ok(grads)
    }
}

fn gradient(engine: &EmbeddedTrainEngine) -> Vec<u32> {
    engine.gradients().named().flat_map(|(_, values)| values.iter().map(|x| x.to_bits())).collect()
}

/// The same coefficients give bitwise the same gradient for the whole step and per micro-batch. A loss of step scope is
/// evaluated once, on the scores of the forward passes.
#[test]
fn a_token_loss_with_step_scope_gives_the_same_gradient() {
    let trajectories: Vec<Trajectory> = (0..7).map(trajectory).collect();
    let whole = OfStep::new(&trajectories);
    let batches = &whole.loss.batches;
    assert!(batches.len() > 2);
    let (mut by_step, mut by_token) = (engine(2), engine(2));
    let expected = by_token.score(Which::Policy, batches).unwrap();
    let reports = [
        by_step.accumulate_loss(batches, &whole).unwrap(),
        by_token.accumulate_loss(batches, &whole.loss).unwrap(),
    ];
    assert_eq!(*whole.seen.lock().unwrap(), [expected]);
    assert_eq!(whole.singly.load(Ordering::Relaxed), 0, "single micro-batches are not evaluated");
    assert_eq!(gradient(&by_step), gradient(&by_token));
    assert!(gradient(&by_step).iter().any(|&bits| bits != 0));
    let [a, b] = reports.map(|report| (report.terms.loss(), report.tokens));
    assert_eq!(a, b);
}

/// Coefficients may depend on all micro-batches; here each is divided by a sum over the step.
#[test]
fn coefficients_may_depend_on_all_micro_batches() {
    struct Coupled(Loss);
    impl StepLoss for Coupled {
        fn scope(&self) -> Scope {
            Scope::Step
        }
        fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
            self.0.evaluate(micro_batch, scores)
        }
        fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
            let total: f32 = scores.iter().flat_map(|s| &s.logprob).sum();
            let mut grads = self.0.evaluate_step(scores)?;
            grads.iter_mut().flat_map(|grad| &mut grad.d_logprob).for_each(|d| *d = 1.0 / total);
            grads.iter_mut().flat_map(|grad| &mut grad.d_entropy).for_each(|d| *d = 0.0);
            Ok(grads)
        }
    }
    let trajectories: Vec<Trajectory> = (0..5).map(trajectory).collect();
    let gradients = [10_000, 20].map(|budget| {
        let loss = Coupled(Loss::new(spec(Aggregation::TokenMean), &trajectories, budget));
        let mut engine = engine(1);
        engine.accumulate_loss(&loss.0.batches, &loss).unwrap();
        let values: Vec<f32> =
            engine.gradients().named().flat_map(|(_, values)| values.iter().copied()).collect();
        values
    });
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let [whole, split] = &gradients;
    let difference = norm(&mut whole.iter().zip(split).map(|(a, b)| a - b));
    let size = norm(&mut whole.iter().copied());
    assert!(size > 0.0 && difference <= 1e-5 * size, "{difference} of {size}");
}

#[test]
fn coefficients_are_required_for_every_micro_batch() {
    let trajectories: Vec<Trajectory> = (0..7).map(trajectory).collect();
    let mut loss = OfStep::new(&trajectories);
    loss.forgets = 1;
    let n = loss.loss.batches.len();
    let error = engine(1).accumulate_loss(&loss.loss.batches, &loss).unwrap_err();
    assert!(matches!(error, TrainError::StepLoss { got, expected } if got == n - 1 && expected == n));
}
