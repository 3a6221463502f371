//! Preference losses: goldens from TRL and the papers, values at zero, derivatives, splits, order, errors.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{
    AlgoError, Algorithm, AlgorithmSettings, Anchor, DataKind, GlobalCounts, LossBatch, LossGrad, LossInputs,
    LossStep, Method, Objective, Preference, PreferenceKind, PreferenceLoss, RunningMean, Scope, TokenScores,
    preference_loss, preference_step,
};
use rloom_core::metric;
use serde::Deserialize;

/// Completions of an optimiser step; in pairs the chosen one first.
#[derive(Debug, Clone, Default)]
struct Rows {
    logprob: Vec<Vec<f32>>,
    reference: Vec<Vec<f32>>,
    /// At half the temperature. If empty, each is as far from `logprob` as its completion has tokens, in tenths.
    sharpened: Vec<Vec<f32>>,
    outcome: Vec<f32>,
    masked: Vec<bool>,
}

impl Rows {
    fn counts(&self) -> GlobalCounts {
        GlobalCounts::of_lengths(self.logprob.iter().map(Vec::len), 0)
    }

    fn part(&self, rows: &Range<usize>) -> (LossInputs, TokenScores) {
        let mut end = 0;
        let own = &self.logprob[rows.clone()];
        let ranges = own.iter().map(|lp| {
            end += lp.len();
            end - lp.len()..end
        });
        let inputs = LossInputs {
            rows: ranges.collect(),
            masked: self.masked.get(rows.clone()).unwrap_or_default().to_vec(),
            reference: Some(self.reference[rows.clone()].concat()),
            sharpened: Some(match &self.sharpened[..] {
                [] => own.iter().flat_map(|lp| lp.iter().map(|x| x + 0.1 * lp.len() as f32)).collect(),
                given => given[rows.clone()].concat(),
            }),
            outcome: Some(self.outcome[rows.clone()].to_vec()),
            ..LossInputs::default()
        };
        let entropy = vec![0.5; end];
        (inputs, TokenScores { logprob: own.concat(), entropy, ..TokenScores::default() })
    }

    fn grad(&self, loss: &PreferenceLoss) -> LossGrad {
        let (inputs, scores) = self.part(&(0..self.logprob.len()));
        preference_step(loss, &[inputs.batch()], &[scores], &self.counts()).unwrap().remove(0)
    }

    fn value(&self, loss: &PreferenceLoss) -> f64 {
        self.grad(loss).terms.loss()
    }
}

fn method_of(kind: PreferenceKind) -> Method {
    kind.name().parse().unwrap()
}

/// The loss of a method with settings of its table.
fn loss(method: Method, preference: &serde_json::Value, anchor: f64) -> PreferenceLoss {
    let settings: AlgorithmSettings =
        serde_json::from_value(serde_json::json!({ "preference": preference })).unwrap();
    let algorithm = Algorithm::resolve(method, &settings, 0).unwrap();
    PreferenceLoss { preference: algorithm.preference.unwrap(), anchor }
}

fn preset(kind: PreferenceKind, anchor: f64) -> PreferenceLoss {
    loss(method_of(kind), &serde_json::json!({}), anchor)
}

fn variants() -> Vec<PreferenceLoss> {
    let mut all: Vec<PreferenceLoss> = PreferenceKind::ALL.iter().map(|&kind| preset(kind, 0.2)).collect();
    for (method, settings) in [
        (Method::Dpo, serde_json::json!({ "average": true, "beta": 0.7 })),
        (Method::Dpo, serde_json::json!({ "divergence": "forward_kl" })),
        (Method::Dpo, serde_json::json!({ "divergence": "js" })),
        (Method::Dpo, serde_json::json!({ "divergence": "alpha", "alpha": 0.3 })),
        (Method::Dpo, serde_json::json!({ "tail_weight": 0.3 })),
        (Method::Ipo, serde_json::json!({ "average": false })),
        (Method::Kto, serde_json::json!({ "desirable_weight": 2.0, "undesirable_weight": 0.5 })),
        (Method::Aot, serde_json::json!({ "paired": false, "label_smoothing": 0.2 })),
    ] {
        all.push(loss(method, &settings, -0.1));
    }
    all
}

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    source: String,
    method: Method,
    preference: serde_json::Value,
    groups: Vec<Vec<Episode>>,
    #[serde(default)]
    anchor: f64,
    loss: f64,
    d_logprob: Vec<f64>,
    metrics: std::collections::BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Episode {
    reward: f32,
    logprob: Vec<f32>,
    reference: Vec<f32>,
    #[serde(default)]
    sharpened: Option<Vec<f32>>,
}

/// Values to 1e-9, derivatives to the rounding of f32.
#[test]
fn goldens() {
    let goldens: Goldens = serde_json::from_str(include_str!("../golden/preferences.json")).unwrap();
    let (mut of_trl, mut methods) = (0, Vec::new());
    for case in goldens.cases {
        let loss = loss(case.method, &case.preference, case.anchor);
        let mut rows = Rows::default();
        for episode in case.groups.into_iter().flatten() {
            rows.logprob.push(episode.logprob);
            rows.reference.push(episode.reference);
            rows.sharpened.extend(episode.sharpened);
            rows.outcome.push(episode.reward);
        }
        let grad = rows.grad(&loss);
        let value = grad.terms.loss();
        let near =
            |got: f64, wanted: f64, relative: f64| (got - wanted).abs() <= relative * (1.0 + wanted.abs());
        // TRL rounds ε to f32.
        let relative = if case.name.starts_with("exo_pair") { 1e-7 } else { 1e-9 };
        assert!(near(value, case.loss, relative), "{}: {value} wanted {}", case.name, case.loss);
        assert_eq!(grad.d_logprob.len(), case.d_logprob.len(), "{}", case.name);
        for (&got, &wanted) in grad.d_logprob.iter().zip(&case.d_logprob) {
            let got = f64::from(got);
            assert!(
                (got - wanted).abs() <= relative.max(2e-7) * wanted.abs() + 1e-12,
                "{}: {got} wanted {wanted}",
                case.name
            );
        }
        let metrics = grad.terms.finish(&rows.counts()).unwrap().named();
        for (name, wanted) in &case.metrics {
            let got = metrics.iter().find(|(own, _)| own == name).unwrap().1;
            assert!(near(got, *wanted, 1e-6), "{}: {name} {got} wanted {wanted}", case.name);
        }
        of_trl += usize::from(case.source == "trl");
        methods.push(case.method);
    }
    assert!(of_trl >= 60, "{of_trl}");
    let missing: Vec<_> =
        PreferenceKind::ALL.iter().map(|&kind| method_of(kind)).filter(|m| !methods.contains(m)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// At the start of a stage the policy is the reference.
#[test]
fn values_where_the_policy_is_the_reference() {
    let own = vec![vec![-0.5, -1.0], vec![-0.4, -0.8, -1.2]];
    let rows = Rows { reference: own.clone(), logprob: own, outcome: vec![1.0, 0.0], ..Rows::default() };
    for (kind, value) in [
        (PreferenceKind::Dpo, std::f64::consts::LN_2),
        (PreferenceKind::Cdpo, std::f64::consts::LN_2),
        (PreferenceKind::Robust, std::f64::consts::LN_2),
        (PreferenceKind::Hinge, 1.0),
        (PreferenceKind::Ipo, 25.0),
        (PreferenceKind::Kto, 0.5),
        (PreferenceKind::Bco, std::f64::consts::LN_2),
        (PreferenceKind::Nca, 1.386_294),
        (PreferenceKind::Exo, 2.761_231),
        (PreferenceKind::Sppo, 50.0),
        (PreferenceKind::ApoZero, 1.0),
        (PreferenceKind::ApoDown, 1.0),
        (PreferenceKind::Aot, std::f64::consts::LN_2),
        (PreferenceKind::Discopop, 0.846_574),
        // Of completions of two and three tokens.
        (PreferenceKind::Wpo, 0.5f64.exp() * std::f64::consts::LN_2),
        // 0.8·log 2 + 0.2·2·log 2, and a likelihood of 1.5 nats divided by the anchor.
        (PreferenceKind::Mpo, 1.2 * std::f64::consts::LN_2 + 1.5 / 2.0),
    ] {
        let got = rows.value(&preset(kind, if kind == PreferenceKind::Mpo { 2.0 } else { 0.0 }));
        assert!((got - value).abs() < 1e-6, "{}: {got}", kind.name());
    }
}

fn completions(pairs: usize) -> impl Strategy<Value = Rows> {
    let completion = prop::collection::vec((-4.0f32..-0.05, -1.5f32..1.5), 1..6);
    prop::collection::vec(completion, 2..=2 * pairs).prop_map(|completions| {
        let even = completions.len() / 2 * 2;
        let mut rows = Rows::default();
        for (row, completion) in completions.into_iter().take(even).enumerate() {
            rows.logprob.push(completion.iter().map(|(lp, _)| *lp).collect());
            rows.reference.push(completion.iter().map(|(lp, by)| lp - by).collect());
            rows.outcome.push(if row % 2 == 0 { 1.0 } else { 0.0 });
        }
        rows
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Ranges of whole pairs.
fn pieces(rows: usize, cuts: u16) -> Vec<Range<usize>> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    for end in (2..=rows).step_by(2) {
        if end == rows || cuts >> (end / 2) & 1 == 1 {
            pieces.push(start..end);
            start = end;
        }
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Coefficients are the derivatives of the value. Log-probabilities are f32, so that differences are wide.
    #[test]
    fn coefficients_are_derivatives(rows in completions(3)) {
        const H: f32 = 1.0 / 1024.0;
        for loss in variants() {
            let grad = rows.grad(&loss);
            let mut flat = 0;
            for row in 0..rows.logprob.len() {
                for t in 0..rows.logprob[row].len() {
                    let at = |step: f32| {
                        let mut moved = rows.clone();
                        moved.logprob[row][t] += step;
                        (moved.value(&loss), f64::from(moved.logprob[row][t]))
                    };
                    let ((low, from), (middle, here), (high, to)) = (at(-H), at(0.0), at(H));
                    let (before, after) = ((middle - low) / (here - from), (high - middle) / (to - here));
                    let (got, wanted) = (f64::from(grad.d_logprob[flat]), (high - low) / (to - from));
                    flat += 1;
                    let tolerance = 2e-3 * wanted.abs() + 2e-5 * (1.0 + middle.abs());
                    // A kink of the hinge, or a change of the order of `aot`: the coefficient is between the slopes on both sides.
                    let has_kinks = matches!(loss.preference.kind(), PreferenceKind::Hinge | PreferenceKind::Aot);
                    let is_close = if has_kinks && (before - after).abs() > tolerance {
                        (before.min(after) - tolerance..=before.max(after) + tolerance).contains(&got)
                    } else {
                        (got - wanted).abs() <= tolerance
                    };
                    prop_assert!(is_close, "{:?} row {}: {} wanted {}", loss, row, got, wanted);
                }
            }
        }
    }

    /// Micro-batches of whole pairs give the same bits as the whole step.
    #[test]
    fn splits_change_nothing(rows in completions(6), cuts: u16, backwards: bool) {
        for loss in variants() {
            let whole = rows.grad(&loss);
            let parts = pieces(rows.logprob.len(), cuts);
            let (inputs, scores): (Vec<_>, Vec<_>) = parts.iter().map(|part| rows.part(part)).unzip();
            let step = LossStep::new(Objective::Preference(loss), rows.counts(), &inputs);
            let mut divisions = vec![step.evaluate_step(&scores).unwrap()];
            if step.scope() != Scope::Step {
                divisions.push(scores.iter().enumerate().map(|(i, own)| step.evaluate(i, own).unwrap()).collect());
            }
            for grads in divisions {
                let flat: Vec<f32> = grads.iter().flat_map(|grad| grad.d_logprob.clone()).collect();
                prop_assert_eq!(bits(&flat), bits(&whole.d_logprob));
                let mut terms = rloom_algo::LossTerms::default();
                let mut order: Vec<_> = grads.iter().collect();
                if backwards {
                    order.reverse();
                }
                for grad in order {
                    terms.merge(&grad.terms);
                }
                let named = |terms: &rloom_algo::LossTerms| format!("{:?}", terms.finish(&rows.counts()).unwrap().named());
                prop_assert_eq!(named(&terms), named(&whole.terms));
            }
        }
    }

    /// The order of the pairs changes no coefficient.
    #[test]
    fn order_changes_nothing(rows in completions(5), by in 0usize..5) {
        let pairs = rows.logprob.len() / 2;
        let order: Vec<usize> = (0..pairs).map(|i| (i + by) % pairs).flat_map(|pair| [2 * pair, 2 * pair + 1]).collect();
        let of = |values: &[Vec<f32>]| order.iter().map(|&row| values[row].clone()).collect::<Vec<_>>();
        let moved = Rows { logprob: of(&rows.logprob), reference: of(&rows.reference), ..rows.clone() };
        for loss in variants() {
            let (grad, other) = (rows.grad(&loss), moved.grad(&loss));
            prop_assert_eq!(grad.terms.loss().to_bits(), other.terms.loss().to_bits());
            let by_row = |rows: &Rows, grad: &LossGrad| {
                let mut end = 0;
                let of_row = |lp: &Vec<f32>| {
                    end += lp.len();
                    bits(&grad.d_logprob[end - lp.len()..end])
                };
                rows.logprob.iter().map(of_row).collect::<Vec<_>>()
            };
            let (own, other) = (by_row(&rows, &grad), by_row(&moved, &other));
            prop_assert_eq!(order.iter().map(|&row| own[row].clone()).collect::<Vec<_>>(), other);
        }
    }
}

/// A masked row masks its pair, which still counts.
#[test]
fn a_masked_row_masks_its_pair() {
    let rows = Rows {
        logprob: vec![vec![-1.0]; 4],
        reference: vec![vec![-1.5]; 4],
        outcome: vec![1.0, 0.0, 1.0, 0.0],
        masked: vec![false, true, false, false],
        ..Rows::default()
    };
    let whole = Rows { masked: Vec::new(), ..rows.clone() };
    for kind in PreferenceKind::ALL {
        let loss = preset(*kind, 0.1);
        let (grad, all) = (rows.grad(&loss), whole.grad(&loss));
        let alone = if loss.preference.data() == DataKind::Labels { 1..2 } else { 0..2 };
        assert!(grad.d_logprob[alone.clone()].iter().all(|&d| d == 0.0), "{}", kind.name());
        if loss.preference.scope() != Scope::Step {
            assert_eq!(grad.d_logprob[alone.end..], all.d_logprob[alone.end..], "{}", kind.name());
        }
    }
}

#[test]
fn damaged_batches_are_typed_errors() {
    let good = Rows {
        logprob: vec![vec![-1.0]; 2],
        reference: vec![vec![-1.0]; 2],
        outcome: vec![1.0, 0.0],
        ..Rows::default()
    };
    let evaluate = |rows: &Rows, change: fn(&mut LossInputs, &mut TokenScores)| {
        let (mut inputs, mut scores) = rows.part(&(0..rows.logprob.len()));
        change(&mut inputs, &mut scores);
        let batch: LossBatch<'_> = inputs.batch();
        preference_loss(&preset(PreferenceKind::Dpo, 0.0), &batch, &scores, &rows.counts())
    };
    assert!(evaluate(&good, |_, _| {}).is_ok());
    let swapped = Rows { outcome: vec![0.0, 1.0], ..good.clone() };
    assert_eq!(evaluate(&swapped, |_, _| {}).unwrap_err(), AlgoError::NotPaired { row: 0 });
    let odd = Rows {
        logprob: vec![vec![-1.0]],
        reference: vec![vec![-1.0]],
        outcome: vec![1.0],
        ..Rows::default()
    };
    assert_eq!(evaluate(&odd, |_, _| {}).unwrap_err(), AlgoError::NotPaired { row: 0 });
    let empty =
        Rows { logprob: vec![vec![-1.0], vec![]], reference: vec![vec![-1.0], vec![]], ..good.clone() };
    assert_eq!(evaluate(&empty, |_, _| {}).unwrap_err(), AlgoError::NotPaired { row: 1 });
    for change in
        [(|inputs, _| inputs.reference = None) as fn(&mut LossInputs, &mut TokenScores), |inputs, _| {
            inputs.outcome = None;
        }]
    {
        assert!(matches!(evaluate(&good, change), Err(AlgoError::Missing { .. })));
    }
    let (mut inputs, scores) = good.part(&(0..2));
    inputs.sharpened = None;
    let wpo = preference_loss(&preset(PreferenceKind::Wpo, 0.0), &inputs.batch(), &scores, &good.counts());
    assert_eq!(wpo.unwrap_err(), AlgoError::Missing { what: rloom_algo::Score::SharpenedLogprob });
    let nan = evaluate(&good, |_, scores| scores.logprob[1] = f32::NAN).unwrap_err();
    assert!(nan.is_not_finite() && nan.row() == Some(1), "{nan}");
    let aot = preset(PreferenceKind::Aot, 0.0);
    let (inputs, scores) = good.part(&(0..2));
    let alone = preference_loss(&aot, &inputs.batch(), &scores, &good.counts());
    assert_eq!(alone.unwrap_err(), AlgoError::StepScope);
}

#[test]
fn settings_are_checked() {
    let resolve = |method: Method, json: &str| {
        Algorithm::resolve(method, &serde_json::from_str(json).unwrap(), 0)
            .map(|algorithm| algorithm.preference)
    };
    for (method, json, key) in [
        (Method::Dpo, r#"{"preference": {"beta": 0.0}}"#, "preference.beta"),
        (Method::Dpo, r#"{"preference": {"tail_weight": 1.5}}"#, "preference.tail_weight"),
        (Method::Dpo, r#"{"preference": {"alpha": 0.3}}"#, "preference.alpha"),
        (Method::Cdpo, r#"{"preference": {"label_smoothing": 0.5}}"#, "preference.label_smoothing"),
        (Method::Exo, r#"{"preference": {"label_smoothing": 0.0}}"#, "preference.label_smoothing"),
        (Method::Kto, r#"{"preference": {"desirable_weight": -1.0}}"#, "preference.desirable_weight"),
        (Method::Simpo, r#"{"preference": {"gamma": -1.0}}"#, "preference.gamma"),
        (Method::Dpo, r#"{"preference": {"gamma": 1.0}}"#, "preference.gamma"),
        (Method::Dpo, r#"{"preference": "ipo"}"#, "preference"),
        (Method::Mpo, r#"{"preference": {"losses": []}}"#, "preference.losses"),
        (Method::Mpo, r#"{"preference": {"losses": [{"kind": "dpo", "weight": -1}]}}"#, "preference.losses"),
        (Method::Mpo, r#"{"preference": {"losses": [{"kind": "dpo", "beta": 0}]}}"#, "preference.losses"),
        (
            Method::Mpo,
            r#"{"preference": {"losses": [{"kind": "dpo", "tail_weight": 0.5}]}}"#,
            "preference.losses",
        ),
        (Method::Mpo, r#"{"preference": {"beta": 0.2}}"#, "preference.beta"),
        (Method::Dpo, r#"{"preference": {"losses": [{"kind": "dpo"}]}}"#, "preference.losses"),
        (Method::OnlineDpo, r#"{"group_size": 1}"#, "group_size"),
        (Method::OnlineDpo, r#"{"preference": "kto"}"#, "preference"),
        (Method::OnlineDpo, r#"{"entropy_coef": 0.1}"#, "entropy_coef"),
        (Method::Dpo, r#"{"group_size": 4}"#, "group_size"),
        (Method::Grpo, r#"{"preference": {"beta": 0.2}}"#, "preference.beta"),
        (Method::Sft, r#"{"preference": {"beta": 0.2}}"#, "preference.beta"),
    ] {
        let error = resolve(method, json).unwrap_err();
        assert_eq!(error.keys(), [key], "{method} {json}: {error}");
    }
    let own = resolve(Method::Dpo, r#"{"preference": {"kind": "dpo", "beta": 0.3}}"#).unwrap().unwrap();
    assert_eq!(own.kind(), PreferenceKind::Dpo);
}

#[test]
fn what_methods_need() {
    for &kind in PreferenceKind::ALL {
        let (method, preference) = (method_of(kind), kind.defaults());
        let algorithm = Algorithm::preset(method).unwrap();
        assert_eq!(method.data(), Some(preference.data()));
        let free = matches!(kind, PreferenceKind::Orpo | PreferenceKind::Cpo | PreferenceKind::Simpo);
        assert_eq!(algorithm.needs_reference(), !free, "{method}");
        assert_eq!(algorithm.scope(), preference.scope());
        assert!(!algorithm.needs_rollouts() && !algorithm.needs_baseline_episode());
    }
    assert_eq!(Method::Kto.data(), Some(DataKind::Labels));
    assert_eq!(Method::Aot.data(), Some(DataKind::Pairs));
    assert_eq!(PreferenceKind::Kto.defaults().anchor(), Some(Anchor::Mismatched));
    assert_eq!(PreferenceKind::Bco.defaults().anchor(), Some(Anchor::Running));
}

#[test]
fn anchors() {
    assert_eq!(Preference::mismatched_anchor(&[1.0, 2.0]), 1.5);
    assert_eq!(Preference::mismatched_anchor(&[-1.0, -2.0]), 0.0);
    let bco = PreferenceKind::Bco.defaults();
    let first = bco.running_anchor(RunningMean::default(), &[1.0, 3.0]);
    assert_eq!((first.mean, first.count), (0.2, 2));
    let second = bco.running_anchor(first, &[10.0, 0.0]);
    assert!((second.mean - 0.35).abs() < 1e-12 && second.count == 4, "{second:?}");
    let rows = Rows {
        logprob: vec![vec![-1.0], vec![-2.0]],
        reference: vec![vec![-1.5], vec![-1.5]],
        outcome: vec![1.0, 0.0],
        ..Rows::default()
    };
    let named = rows.grad(&preset(PreferenceKind::Kto, 0.25)).terms.finish(&rows.counts()).unwrap().named();
    assert!(named.contains(&(metric::REWARDS_ANCHOR, 0.25)));
}

/// A list is a loss of the largest scope and reads what any of its losses reads.
#[test]
fn lists_of_losses_are_one_loss() {
    let of = |json: &str| loss(Method::Mpo, &serde_json::from_str(json).unwrap(), 2.0).preference;
    let pairs = of(r#"{"losses": [{"kind": "sft"}, {"kind": "dpo"}]}"#);
    assert_eq!((pairs.scope(), pairs.anchor()), (Scope::Pair, Some(Anchor::ChosenTokens)));
    assert!(pairs.reads_reference());
    let likelihood = of(r#"{"losses": [{"kind": "sft"}, {"kind": "simpo"}]}"#);
    assert!(!likelihood.reads_reference());
    let sorted = of(r#"{"losses": [{"kind": "aot"}, {"kind": "ipo", "weight": 0.5}]}"#);
    assert_eq!((sorted.scope(), sorted.anchor()), (Scope::Step, None));
    // One loss with weight 1 is that loss, bit by bit.
    let rows = Rows {
        logprob: vec![vec![-1.0, -0.25], vec![-2.0]],
        reference: vec![vec![-1.5, -0.5], vec![-1.5]],
        outcome: vec![1.0, 0.0],
        ..Rows::default()
    };
    let alone = rows.grad(&loss(Method::Ipo, &serde_json::json!({"beta": 0.3}), 0.0));
    let list = serde_json::json!({"losses": [{"kind": "ipo", "beta": 0.3}]});
    let listed = rows.grad(&loss(Method::Mpo, &list, 0.0));
    assert_eq!(bits(&alone.d_logprob), bits(&listed.d_logprob));
    let named =
        rows.grad(&loss(Method::Mpo, &serde_json::json!({}), 2.0)).terms.finish(&rows.counts()).unwrap();
    assert!(named.named().iter().all(|(name, _)| *name != metric::REWARDS_ANCHOR), "tokens are no reward");
}
