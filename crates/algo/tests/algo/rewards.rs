//! Losses of reward models: goldens from TRL and transformers, values at zero, derivatives, splits, errors.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{
    AlgoError, Algorithm, AlgorithmSettings, DataKind, GlobalCounts, LossGrad, LossInputs, LossStep,
    LossTerms, Method, Objective, RewardLoss, RewardModelSpec, Scope, StepLabel, TokenScores,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Goldens {
    pairs: Vec<PairCase>,
    steps: Vec<StepCase>,
}

#[derive(Deserialize)]
struct PairCase {
    name: String,
    rewards: Vec<[f32; 2]>,
    margins: Vec<f32>,
    center: f64,
    loss: f64,
    d_reward: Vec<[f64; 2]>,
    metrics: std::collections::BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct StepCase {
    name: String,
    rows: Vec<Vec<(f32, bool)>>,
    loss: f64,
    d_value: Vec<Vec<f64>>,
}

fn goldens() -> Goldens {
    serde_json::from_str(include_str!("../golden/rewards.json")).unwrap()
}

/// Completions with the value before each policy token and after the last one.
#[derive(Debug, Clone, Default)]
struct Rows {
    value: Vec<Vec<f32>>,
    last: Vec<f32>,
    margin: Vec<f32>,
    steps: Vec<Vec<StepLabel>>,
    masked: Vec<bool>,
}

impl Rows {
    /// Pairs of completions of one to three tokens.
    fn pairs(rewards: &[[f32; 2]], margins: &[f32]) -> Self {
        let last: Vec<f32> = rewards.iter().flatten().copied().collect();
        let value = (0..last.len()).map(|row| vec![0.5; 1 + row % 3]).collect();
        let margin = margins.iter().flat_map(|&margin| [margin, 0.0]).collect();
        Self { value, last, margin, ..Self::default() }
    }

    /// Completions whose steps have two tokens each, the last one has one.
    fn steps(rows: &[Vec<(f32, bool)>]) -> Self {
        let mut all = Self::default();
        for row in rows {
            let tokens = 2 * row.len() - 1;
            let (mut value, mut labels) = (vec![0.25; tokens], Vec::new());
            for (step, &(score, is_right)) in row.iter().enumerate() {
                let end = (2 * step + 2).min(tokens);
                if let Some(value) = value.get_mut(end) {
                    *value = score;
                }
                labels.push(StepLabel { end, is_right });
            }
            all.value.push(value);
            all.last.push(row.last().unwrap().0);
            all.steps.push(labels);
        }
        all
    }

    fn counts(&self) -> GlobalCounts {
        GlobalCounts::of_lengths(self.value.iter().map(Vec::len), 0)
    }

    fn part(&self, rows: &Range<usize>) -> (LossInputs, TokenScores) {
        let own = &self.value[rows.clone()];
        let mut end = 0;
        let ranges = own.iter().map(|value| {
            end += value.len();
            end - value.len()..end
        });
        let margin = (!self.margin.is_empty()).then(|| self.margin[rows.clone()].to_vec());
        let inputs = LossInputs {
            rows: ranges.collect(),
            outcome: Some(rows.clone().map(|row| if row % 2 == 0 { 1.0 } else { 0.0 }).collect()),
            margin,
            steps: self.steps.get(rows.clone()).unwrap_or_default().to_vec(),
            masked: self.masked.get(rows.clone()).unwrap_or_default().to_vec(),
            ..LossInputs::default()
        };
        let last_value = self.last[rows.clone()].to_vec();
        (inputs, TokenScores { value: own.concat(), last_value, ..TokenScores::default() })
    }

    fn evaluate(&self, loss: RewardLoss, parts: &[Range<usize>]) -> Result<Vec<LossGrad>, AlgoError> {
        let (inputs, scores): (Vec<_>, Vec<_>) = parts.iter().map(|rows| self.part(rows)).unzip();
        LossStep::new(Objective::Reward(loss), self.counts(), &inputs).evaluate_step(&scores)
    }

    fn whole(&self, loss: RewardLoss) -> LossGrad {
        self.evaluate(loss, std::slice::from_ref(&(0..self.last.len()))).unwrap().remove(0)
    }

    fn loss_of_steps(&self) -> RewardLoss {
        RewardLoss::Steps { steps: self.steps.iter().map(Vec::len).sum::<usize>() as u64 }
    }
}

#[track_caller]
fn close(got: f32, wanted: f64, what: &str) {
    assert!((f64::from(got) - wanted).abs() <= 1e-7 * wanted.abs() + 1e-10, "{what}: {got} {wanted}");
}

/// Values to 1e-9, derivatives to the rounding of f32, metrics as TRL reports them.
#[test]
fn pairs_agree_with_trl() {
    let cases = goldens().pairs;
    assert_eq!(cases.len(), 12);
    for case in cases {
        let rows = Rows::pairs(&case.rewards, &case.margins);
        let grad = rows.whole(RewardLoss::Pairs { center: case.center });
        let metrics = grad.terms.finish(&rows.counts()).unwrap();
        assert!((metrics.loss - case.loss).abs() < 1e-9 * (1.0 + case.loss.abs()), "{}", case.name);
        for (row, &wanted) in case.d_reward.iter().flatten().enumerate() {
            close(grad.d_last_value[row], wanted, &case.name);
        }
        assert!(grad.d_value.iter().all(|&d| d == 0.0) && grad.d_logprob.is_empty());
        let named: std::collections::BTreeMap<&str, f64> = metrics.named().into_iter().collect();
        assert_eq!(case.metrics.len(), 5);
        for (metric, wanted) in &case.metrics {
            assert!((named[metric.as_str()] - wanted).abs() < 1e-6, "{} {metric}", case.name);
        }
    }
}

#[test]
fn steps_agree_with_the_cross_entropy_of_two_labels() {
    for case in goldens().steps {
        let rows = Rows::steps(&case.rows);
        let grad = rows.whole(rows.loss_of_steps());
        let metrics = grad.terms.finish(&rows.counts()).unwrap();
        assert!((metrics.loss - case.loss).abs() < 1e-9 * (1.0 + case.loss.abs()), "{}", case.name);
        let (inputs, _) = rows.part(&(0..rows.last.len()));
        let mut found = 0;
        for (row, labels) in rows.steps.iter().enumerate() {
            for (label, &wanted) in labels.iter().zip(&case.d_value[row]) {
                let inside = inputs.rows[row].start + label.end;
                let d = if label.end < rows.value[row].len() {
                    grad.d_value[inside]
                } else {
                    grad.d_last_value[row]
                };
                close(d, wanted, &case.name);
                found += 1;
            }
        }
        let nonzero = grad.d_value.iter().chain(&grad.d_last_value).filter(|&&d| d != 0.0).count();
        assert_eq!(nonzero, found, "{}: nothing but the ends of steps has a derivative", case.name);
    }
}

#[test]
fn values_at_zero() {
    let rows = Rows::pairs(&[[0.0, 0.0]; 3], &[]);
    for center in [0.0, 0.5] {
        let loss = rows.whole(RewardLoss::Pairs { center }).terms.loss();
        assert!((loss - std::f64::consts::LN_2).abs() < 1e-6);
    }
    let rows = Rows::steps(&[vec![(0.0, true), (0.0, false)]]);
    assert!((rows.whole(rows.loss_of_steps()).terms.loss() - std::f64::consts::LN_2).abs() < 1e-6);
}

/// Differences of the value in f64 by moving one score at a time.
fn check_differences(rows: &Rows, loss: RewardLoss) {
    let grad = rows.whole(loss);
    let step = 1.0 / 1024.0;
    let value = |rows: &Rows| rows.whole(loss).terms.loss();
    let mut token = 0;
    for row in 0..rows.last.len() {
        for place in 0..=rows.value[row].len() {
            let moved = |by: f32| {
                let mut moved = rows.clone();
                match moved.value[row].get_mut(place) {
                    Some(value) => *value += by,
                    None => moved.last[row] += by,
                }
                value(&moved)
            };
            let measured = (moved(step) - moved(-step)) / f64::from(2.0 * step);
            let d = if place < rows.value[row].len() {
                grad.d_value[token + place]
            } else {
                grad.d_last_value[row]
            };
            assert!((measured - f64::from(d)).abs() < 2e-6, "row {row}, {place}: {measured} {d}");
        }
        token += rows.value[row].len();
    }
}

fn grid() -> impl Strategy<Value = f32> {
    // Multiples of 2⁻⁶, so that moving one by 2⁻¹⁰ is exact.
    (-192..192i32).prop_map(|x| x as f32 / 64.0)
}

fn pairs() -> impl Strategy<Value = Rows> {
    prop::collection::vec(((grid(), grid()), 0.0..2.0f32), 1..6).prop_map(|all| {
        let rewards: Vec<[f32; 2]> = all.iter().map(|((c, r), _)| [*c, *r]).collect();
        Rows::pairs(&rewards, &all.iter().map(|(_, margin)| *margin).collect::<Vec<_>>())
    })
}

fn steps() -> impl Strategy<Value = Rows> {
    prop::collection::vec(prop::collection::vec((grid(), any::<bool>()), 1..5), 1..6)
        .prop_map(|rows| Rows::steps(&rows))
}

/// Bits of the derivatives and the metrics do not depend on the split.
fn check_split(rows: &Rows, loss: RewardLoss, unit: usize, cut: usize) {
    let n = rows.last.len();
    let cut = cut % (n / unit + 1) * unit;
    let parts: Vec<Range<usize>> = [0..cut, cut..n].into_iter().filter(|part| !part.is_empty()).collect();
    let whole = rows.whole(loss);
    let split = rows.evaluate(loss, &parts).unwrap();
    let concat = |get: fn(&LossGrad) -> &Vec<f32>| split.iter().flat_map(get).copied().collect::<Vec<f32>>();
    assert_eq!(concat(|g| &g.d_value), whole.d_value);
    assert_eq!(concat(|g| &g.d_last_value), whole.d_last_value);
    let mut terms = LossTerms::default();
    for grad in &split {
        terms.merge(&grad.terms);
    }
    let counts = rows.counts();
    assert_eq!(terms.finish(&counts).unwrap(), whole.terms.finish(&counts).unwrap());
}

proptest! {
    #[test]
    fn derivatives_of_pairs(rows in pairs(), center in 0.0..0.5f64) {
        check_differences(&rows, RewardLoss::Pairs { center });
    }

    #[test]
    fn derivatives_of_steps(rows in steps()) {
        check_differences(&rows, rows.loss_of_steps());
    }

    #[test]
    fn splits_of_pairs(rows in pairs(), cut in 0..9usize) {
        check_split(&rows, RewardLoss::Pairs { center: 0.01 }, 2, cut);
    }

    #[test]
    fn splits_of_steps(rows in steps(), cut in 0..9usize) {
        check_split(&rows, rows.loss_of_steps(), 1, cut);
    }
}

#[test]
fn extreme_rewards_are_finite() {
    let rows = Rows::pairs(&[[-1e30, 1e30], [1e30, -1e30]], &[]);
    let grad = rows.whole(RewardLoss::Pairs { center: 0.0 });
    assert_eq!(grad.d_last_value, [-0.5, 0.5, 0.0, 0.0]);
}

#[test]
fn masked_pairs_have_no_derivative() {
    let mut rows = Rows::pairs(&[[0.5, 0.0], [0.1, 0.4]], &[0.3, 0.2]);
    let all = rows.whole(RewardLoss::Pairs { center: 0.1 });
    rows.masked = vec![false, true, false, false];
    let grad = rows.whole(RewardLoss::Pairs { center: 0.1 });
    assert_eq!(grad.d_last_value[..2], [0.0, 0.0]);
    assert_eq!(grad.d_last_value[2..], all.d_last_value[2..]);
    assert_eq!(grad.terms.finish(&rows.counts()).unwrap().accuracy, Some(0.0));
}

#[test]
fn wrong_inputs_are_refused() {
    let of = |change: &dyn Fn(&mut LossInputs, &mut TokenScores), loss: RewardLoss, rows: &Rows| {
        let (mut inputs, mut scores) = rows.part(&(0..rows.last.len()));
        change(&mut inputs, &mut scores);
        let result =
            LossStep::new(Objective::Reward(loss), rows.counts(), &[inputs]).evaluate_step(&[scores]);
        result.unwrap_err().to_string()
    };
    let pairs = Rows::pairs(&[[0.5, 0.0]], &[0.25]);
    let loss = RewardLoss::Pairs { center: 0.0 };
    assert!(of(&|inputs, _| inputs.outcome = None, loss, &pairs).contains("outcome"));
    assert!(of(&|inputs, _| inputs.outcome = Some(vec![0.0, 1.0]), loss, &pairs).contains("alternate"));
    assert!(of(&|inputs, _| inputs.margin = Some(vec![0.0]), loss, &pairs).contains("margin"));
    assert!(
        of(&|inputs, _| inputs.margin = Some(vec![f32::NAN, 0.0]), loss, &pairs).contains("margin is NaN")
    );
    assert!(of(&|_, scores| scores.last_value = vec![0.0], loss, &pairs).contains("last value"));
    assert!(of(&|_, scores| scores.last_value[1] = f32::INFINITY, loss, &pairs).contains("value is inf"));
    let steps = Rows::steps(&[vec![(0.0, true), (1.0, false)]]);
    let loss = steps.loss_of_steps();
    assert!(of(&|inputs, _| inputs.steps.clear(), loss, &steps).contains("step labels"));
    assert!(of(&|inputs, _| inputs.steps[0][1].end = 4, loss, &steps).contains("step 1 ends after 4 of 3"));
    assert!(of(&|inputs, _| inputs.steps[0][1].end = 2, loss, &steps).contains("step 1 ends after 2"));
    let few = RewardLoss::Steps { steps: 1 };
    assert!(of(&|_, _| {}, few, &steps).contains("1 steps, its micro-batches hold 2"));
}

#[test]
fn methods_resolve_to_reward_models() {
    let of = |method, text: &str| {
        let settings: AlgorithmSettings = serde_json::from_str(text).unwrap();
        Algorithm::resolve(method, &settings, 0)
    };
    let plain = of(Method::RewardModel, "{}").unwrap();
    assert_eq!(plain.reward_model, Some(RewardModelSpec::Sequence { center: 0.0 }));
    assert_eq!((plain.scope(), plain.needs_rollouts()), (Scope::Pair, false));
    assert!(!plain.needs_reference());
    let text = r#"{"reward_model": {"center_rewards_coefficient": 0.01}}"#;
    let centered = of(Method::RewardModel, text).unwrap();
    assert_eq!(centered.reward_model, Some(RewardModelSpec::Sequence { center: 0.01 }));
    assert_eq!(serde_json::to_string(&centered.to_settings()).unwrap(), text.replace(' ', ""));
    let process = of(Method::Prm, "{}").unwrap();
    assert_eq!(process.reward_model, Some(RewardModelSpec::Process));
    assert_eq!(Method::RewardModel.data(), Some(DataKind::Pairs));
    assert_eq!(Method::Prm.data(), Some(DataKind::Steps));
    for (method, text, key) in [
        (Method::Prm, text, "reward_model.center_rewards_coefficient"),
        (Method::Dpo, text, "reward_model.center_rewards_coefficient"),
        (Method::Grpo, text, "reward_model.center_rewards_coefficient"),
        (Method::RewardModel, r#"{"epochs": 2}"#, "epochs"),
        (Method::RewardModel, r#"{"preference": {"beta": 0.2}}"#, "preference.beta"),
        (
            Method::RewardModel,
            r#"{"reward_model": {"center_rewards_coefficient": -1.0}}"#,
            "reward_model.center_rewards_coefficient",
        ),
    ] {
        assert_eq!(of(method, text).unwrap_err().keys(), [key], "{method} {text}");
    }
}
