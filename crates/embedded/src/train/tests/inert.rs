//! Sequences without coefficients: scored, counted, and not back-propagated.

use super::super::loss::StepLoss;
use rloom_algo::{AlgoError, LossGrad, Method, PolicyLoss, Scope, TokenScores};
use rloom_core::SampleKey;
use rloom_engine::{OptimStep, TrainEngine, TrainError, pack, pack_unshared};

use super::groups::{GroupLoss, bits, distance, gradient, groups, losses, zero_for_odd};
use super::support::{engine, settings, weights};

fn of_method(method: Method) -> PolicyLoss {
    losses().into_iter().find(|(name, _)| name == method.name()).unwrap().1
}

/// Groups without an advantage are not back-propagated in any micro-batch; the reported sums stay the same.
#[test]
fn groups_without_an_advantage_only_save_work() {
    let all = groups();
    let odd: u64 = all.iter().filter(|t| t.key.ticket.0 % 2 == 1).map(|t| t.tokens.len() as u64).sum::<u64>();
    let tokens: u64 = all.iter().map(|t| t.tokens.len() as u64).sum();
    for method in [Method::Grpo, Method::Gspo, Method::Cispo, Method::ClipCov, Method::Rloo] {
        let spec = of_method(method);
        for budget in [40, 10_000] {
            let batches = pack_unshared(&all, budget).unwrap();
            let loss = GroupLoss::new(spec, &all, &batches, zero_for_odd);
            let mut skipping = engine(2);
            let report = skipping.accumulate_loss(&batches, &loss).unwrap();
            let blind =
                GroupLoss { declares_inert: false, ..GroupLoss::new(spec, &all, &batches, zero_for_odd) };
            let mut thorough = engine(2);
            let whole = thorough.accumulate_loss(&batches, &blind).unwrap();
            let far = distance(&gradient(&thorough), &gradient(&skipping));
            assert!(far <= 1e-5, "{method}, {budget}: {far:e}");
            assert_eq!(format!("{:?}", report.terms), format!("{:?}", whole.terms), "{method}");
            assert_eq!((report.tokens, report.skipped), (tokens - odd, odd), "{method}");
            if spec.scope() != Scope::Step {
                assert_eq!((whole.tokens, whole.skipped), (tokens, 0));
            }
        }
        // The same with shared prompts.
        let batches = pack(&all, 60).unwrap();
        let loss = GroupLoss::new(spec, &all, &batches, zero_for_odd);
        let (mut skipping, mut again) = (engine(2), engine(3));
        let report = skipping.accumulate_loss(&batches, &loss).unwrap();
        again.accumulate_loss(&batches, &loss).unwrap();
        assert_eq!(bits(&gradient(&skipping)), bits(&gradient(&again)), "{method}");
        assert_eq!(report.tokens + report.skipped + report.shared, tokens, "{method}");
        let blind = GroupLoss { declares_inert: false, ..GroupLoss::new(spec, &all, &batches, zero_for_odd) };
        let mut thorough = engine(2);
        thorough.accumulate_loss(&batches, &blind).unwrap();
        assert!(distance(&gradient(&thorough), &gradient(&skipping)) <= 1e-5, "{method}");
    }
}

/// Without any coefficient there is no backward pass, and the optimiser still applies weight decay and its moments.
#[test]
fn a_step_without_any_coefficient_is_a_step() {
    let all = groups();
    let batches = pack(&all, 60).unwrap();
    let spec = of_method(Method::Grpo);
    let ends = [true, false].map(|declares_inert| {
        let mut engine = engine(2);
        let loss = GroupLoss::new(spec, &all, &batches, zero_for_odd);
        engine.accumulate_loss(&batches, &loss).unwrap();
        engine.step(&OptimStep { learning_rate: settings().learning_rate }).unwrap();
        let none = GroupLoss { declares_inert, ..GroupLoss::new(spec, &all, &batches, |_| 0.0) };
        let report = engine.accumulate_loss(&batches, &none).unwrap();
        assert_eq!(report.tokens == 0, declares_inert);
        assert!(gradient(&engine).iter().all(|&x| x == 0.0));
        let before = weights(&engine);
        let taken = engine.step(&OptimStep { learning_rate: settings().learning_rate }).unwrap();
        assert_eq!(taken.grad_norm, 0.0);
        assert_ne!(weights(&engine), before);
        weights(&engine)
    });
    assert_eq!(ends[0], ends[1]);
}

/// A loss that declares a sequence inert and gives it coefficients.
struct Lying<'a>(GroupLoss<'a>);

impl StepLoss for Lying<'_> {
    fn scope(&self) -> Scope {
        self.0.scope()
    }
    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        self.0.evaluate(micro_batch, scores)
    }
    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        self.0.evaluate_step(scores)
    }
    fn inert(&self, _: usize) -> Vec<bool> {
        vec![false, true]
    }
}

#[test]
fn a_coefficient_of_what_was_not_back_propagated_is_an_error() {
    let all = groups();
    let batches = pack(&all, 10_000).unwrap();
    let loss = Lying(GroupLoss::new(of_method(Method::Grpo), &all, &batches, |_| 1.0));
    let error = engine(1).accumulate_loss(&batches, &loss).unwrap_err();
    assert!(matches!(error, TrainError::NotInert { key: SampleKey { sample: 1, .. } }), "{error}");
    assert!(miette::Diagnostic::help(&error).is_some(), "{error}");
}
