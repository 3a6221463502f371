//! Sequences that are known before scoring to have no gradient.

use proptest::prelude::*;
use rloom_algo::{Algorithm, LossBatch, Method, Surrogate};

use crate::{
    losses::{losses, surrogates, variants},
    step::{Step, steps},
};

/// A large difference between the policies, which reaches every clamp of a ratio.
fn far_apart(step: Step) -> Step {
    let far = |from: &[f32]| from.iter().zip(&step.logprob).map(|(x, lp)| lp + 60.0 * (x - lp)).collect();
    Step { old: far(&step.old), behavior: far(&step.behavior), reference: far(&step.reference), ..step }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Rows declared inert have no coefficients for any scores.
    #[test]
    fn what_is_inert_has_no_coefficient(step in steps(), far in any::<bool>(), masks in any::<bool>()) {
        let step = if far { far_apart(step) } else { step };
        let step = if masks { step } else { Step { masked: Vec::new(), ..step } };
        let rows = step.rows(0..step.lengths.len());
        for loss in losses() {
            let inert = loss.inert(&step.batch(&rows, 0..step.lengths.len()));
            let grad = step.loss(&loss).unwrap();
            for (range, _) in rows.iter().zip(&inert).filter(|(_, inert)| **inert) {
                let own = |d: &[f32]| d.get(range.clone()).unwrap_or_default().iter().all(|x| x.to_bits() == 0);
                prop_assert!(own(&grad.d_logprob) && own(&grad.d_entropy) && own(&grad.d_value), "{loss:?}");
            }
        }
    }
}

/// Two rows: the first without an advantage, the second with one at its last token.
fn inert_at_zero(loss: &rloom_algo::PolicyLoss) -> Vec<bool> {
    let batch =
        LossBatch { rows: &[0..2, 2..4], advantage: Some(&[0.0, -0.0, 0.0, 0.5]), ..LossBatch::default() };
    loss.inert(&batch)
}

/// True if the surrogate has a derivative where the advantage is 0.
pub(crate) fn has_own_terms(surrogate: Surrogate) -> bool {
    let step = Step {
        lengths: vec![2],
        completion_limit: 8,
        logprob: vec![-1.0, -2.0],
        entropy: vec![1.0; 2],
        advantage: vec![0.0; 2],
        old: vec![-1.1, -2.2],
        behavior: vec![-1.1, -2.2],
        reference: vec![-1.2, -2.1],
        outcome: vec![1.0],
        ..Step::default()
    };
    let loss = rloom_algo::PolicyLoss::new(surrogate, rloom_algo::Aggregation::TokenMean);
    step.loss(&loss).unwrap().d_logprob.iter().any(|&d| d != 0.0)
}

#[test]
fn a_row_without_an_advantage_is_inert_if_only_the_surrogate_has_a_gradient() {
    for surrogate in surrogates() {
        let own_terms = has_own_terms(surrogate);
        for loss in variants(surrogate, rloom_algo::Aggregation::TokenMean) {
            let more = own_terms || loss.kl.is_some() || loss.entropy_coef != 0.0 || loss.value.is_some();
            assert_eq!(inert_at_zero(&loss), [!more, false], "{loss:?}");
        }
    }
    let grpo = Algorithm::preset(Method::Grpo).unwrap().loss;
    let masked = LossBatch { rows: &[0..2, 2..3], masked: &[false, true], ..LossBatch::default() };
    assert_eq!(grpo.inert(&masked), [false, true], "without an advantage nothing is known of the first");
}
