//! Finite differences: coefficients are the derivatives of the reported loss, with its constants held constant.

use proptest::prelude::*;
use rloom_algo::{Aggregation, PolicyLoss, Scope, ValueLoss};

use crate::{
    held::{Held, Point, is_known},
    losses::{losses, surrogates, variants},
    step::{Step, steps},
};

const H: f64 = 1e-5;

/// The two-sided difference quotient; `None` at a kink.
fn difference(
    held: &Held<'_>,
    here: &Point,
    entry: fn(&mut Point) -> &mut Vec<f64>,
    i: usize,
) -> Option<f64> {
    let at = |step: f64| {
        let mut point = here.clone();
        entry(&mut point)[i] += step;
        held.at(&point)
    };
    let (low, middle, high) = (at(-H), at(0.0), at(H));
    let (before, after) = ((middle - low) / H, (high - middle) / H);
    ((before - after).abs() <= 1e-3 * (before.abs() + after.abs()) + 1e-7).then_some((high - low) / (2.0 * H))
}

/// Number of tokens compared, and of those skipped at a kink.
#[derive(Default)]
struct Seen {
    compared: u64,
    kinks: u64,
}

impl Seen {
    fn compare(&mut self, what: &str, got: f32, wanted: Option<f64>) -> Result<(), TestCaseError> {
        let Some(wanted) = wanted else {
            self.kinks += 1;
            return Ok(());
        };
        self.compared += 1;
        let got = f64::from(got);
        prop_assert!(
            (got - wanted).abs() <= 1e-5 * wanted.abs() + 1e-8,
            "{}: {} wanted {}",
            what,
            got,
            wanted
        );
        Ok(())
    }
}

fn check(loss: &PolicyLoss, step: &Step, seen: &mut Seen) -> Result<(), TestCaseError> {
    let grad = step.loss(loss).unwrap();
    let held = Held::new(loss, step);
    let here = Point::of(step);
    let (reported, wanted) = (grad.terms.loss(), held.at(&here));
    prop_assert!(
        (reported - wanted).abs() <= 1e-9 * (1.0 + wanted.abs()),
        "{:?}: loss {} wanted {}",
        loss,
        reported,
        wanted
    );
    for i in 0..step.logprob.len() {
        let by_logprob = difference(&held, &here, |p| &mut p.lp, i);
        seen.compare(&format!("{loss:?} token {i}"), grad.d_logprob[i], by_logprob)?;
        let by_entropy = difference(&held, &here, |p| &mut p.entropy, i);
        seen.compare(&format!("{loss:?} entropy {i}"), grad.d_entropy[i], by_entropy)?;
        let by_value = difference(&held, &here, |p| &mut p.value, i);
        seen.compare(&format!("{loss:?} value {i}"), grad.d_value[i], by_value)?;
    }
    Ok(())
}

/// Few tokens are skipped, so that the property is actually tested.
fn check_all(losses: &[PolicyLoss], step: &Step) -> Result<(), TestCaseError> {
    let mut seen = Seen::default();
    for loss in losses {
        check(loss, step, &mut seen)?;
    }
    prop_assert!(seen.kinks * 20 <= seen.compared, "{} kinks, {} compared", seen.kinks, seen.compared);
    Ok(())
}

/// Every surrogate with every other term of the loss, for one normaliser.
fn of_mode(aggregation: Aggregation) -> Vec<PolicyLoss> {
    surrogates().into_iter().filter(is_known).flat_map(|surrogate| variants(surrogate, aggregation)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn coefficients_are_derivatives(step in steps(), mode in 0usize..4) {
        let step = Step { interpolation: Vec::new(), ..step };
        check_all(&of_mode(Aggregation::ALL[mode]), &step)?;
    }

    /// The interpolated proximal policy is held constant, in ratio and weight.
    #[test]
    fn of_an_interpolated_proximal_policy(step in steps(), mode in 0usize..4) {
        let step = Step { old: Vec::new(), mismatch: rloom_algo::Mismatch::Scores, ..step };
        check_all(&of_mode(Aggregation::ALL[mode]), &step)?;
    }

    /// Advantages per token.
    #[test]
    fn of_advantages_per_token(step in steps(), mode in 0usize..4) {
        let advantage = step.value.clone();
        let step = Step { interpolation: Vec::new(), advantage, ..step };
        let mut losses = of_mode(Aggregation::ALL[mode]);
        losses.retain(|loss| !loss.surrogate.is_per_sequence());
        check_all(&losses, &step)?;
    }

    #[test]
    fn of_a_critic_of_its_own(step in steps(), clip in prop_oneof![Just(None), (0.05f64..0.5).prop_map(Some)]) {
        let spec = ValueLoss { coef: 1.0, clip };
        let loss = PolicyLoss { value: Some(spec), ..losses()[0] };
        let zero = Step { advantage: vec![0.0; step.logprob.len()], interpolation: Vec::new(), ..step };
        let held = Held::new(&loss, &zero);
        let here = Point::of(&zero);
        let grad = zero.critic(&spec, 0..zero.lengths.len()).unwrap();
        prop_assert!((grad.terms.loss() - held.at(&here)).abs() < 1e-9);
        let mut seen = Seen::default();
        for i in 0..zero.value.len() {
            seen.compare("value", grad.d_value[i], difference(&held, &here, |p| &mut p.value, i))?;
        }
        // A shared backbone has the same coefficients.
        prop_assert_eq!(grad.d_value, zero.loss(&loss).unwrap().d_value);
    }
}

/// Inputs of the properties above.
#[test]
fn every_part_is_among_the_losses() {
    let losses = losses();
    assert!(losses.len() > 900, "{}", losses.len());
    assert!(losses.iter().any(|l| l.scope() == Scope::Step && l.correction.weight.is_some()));
}
