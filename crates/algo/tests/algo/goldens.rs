//! Losses compared with reference values from the programs in `golden`: the papers' formulas, and TRL and verl where
//! they are correct.

use std::collections::BTreeMap;

use rloom_algo::{
    Aggregation, Algorithm, AlgorithmSettings, ImplicitReward, LossMetrics, Method, Mismatch, PolicyLoss,
    Proximal, Surrogate, ValueLoss,
};
use rloom_core::metric;
use serde::Deserialize;

use crate::step::Step;

#[derive(Deserialize)]
struct Golden {
    inputs: BTreeMap<String, Inputs>,
    losses: Vec<LossCase>,
    #[serde(default)]
    values: Vec<ValueCase>,
}

#[derive(Deserialize)]
struct Inputs {
    lengths: Vec<usize>,
    completion_limit: u64,
    logprob: Vec<f32>,
    entropy: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    advantage: Vec<f32>,
    #[serde(default)]
    behavior: Vec<f32>,
    #[serde(default)]
    alpha: Vec<f32>,
    #[serde(default)]
    value: Vec<f32>,
    #[serde(default)]
    old_value: Vec<f32>,
    #[serde(default)]
    returns: Vec<f32>,
    #[serde(default)]
    outcome: Vec<f32>,
    #[serde(default)]
    masked: Vec<bool>,
}

impl Inputs {
    fn step(&self) -> Step {
        Step {
            lengths: self.lengths.clone(),
            completion_limit: self.completion_limit,
            logprob: self.logprob.clone(),
            entropy: self.entropy.clone(),
            value: Vec::new(),
            advantage: self.advantage.clone(),
            old: self.old.clone(),
            behavior: self.behavior.clone(),
            reference: self.reference.clone(),
            interpolation: Vec::new(),
            returns: self.returns.clone(),
            old_value: self.old_value.clone(),
            outcome: self.outcome.clone(),
            masked: self.masked.clone(),
            mismatch: Mismatch::Unmeasured,
        }
    }
}

#[derive(Deserialize)]
struct LossCase {
    name: String,
    method: String,
    settings: serde_json::Value,
    #[serde(default)]
    max_staleness: u64,
    inputs: String,
    /// Absent if the library's value differs by a constant.
    loss: Option<f64>,
    d_logprob: Vec<f64>,
    d_entropy: Vec<f64>,
    /// Value before its weight.
    value_loss: Option<f64>,
    d_value: Option<Vec<f64>>,
    /// Tokens selected by a loss of step scope.
    picked: Option<Vec<u64>>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

/// The loss of a separate critic.
#[derive(Deserialize)]
struct ValueCase {
    name: String,
    inputs: String,
    clip: Option<f64>,
    value_loss: f64,
    d_value: Vec<f64>,
    metrics: BTreeMap<String, f64>,
}

const PAPERS: &str = include_str!("../golden/from_papers.json");
const TRL: &str = include_str!("../golden/from_trl.json");
const VERL: &str = include_str!("../golden/from_verl.json");

/// The golden files of single losses, `golden/loss_*.json`, by the loss's name.
pub(crate) fn of_single_losses() -> BTreeMap<String, String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_prefix("loss_")?.strip_suffix(".json")?.to_owned();
            Some((name, std::fs::read_to_string(path).unwrap()))
        })
        .collect()
}

fn read(json: &str) -> Golden {
    serde_json::from_str(json).expect("a golden file")
}

fn close(got: f64, wanted: f64) -> bool {
    (got - wanted).abs() <= 1e-6 * wanted.abs() + 1e-10
}

fn all_close(what: &str, got: &[f32], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(wanted).enumerate() {
        assert!(close(f64::from(g), w), "{what}: entry {i} is {g}, wanted {w}");
    }
}

/// Maps the programs' names of metrics to ours.
fn metric_of(metrics: &LossMetrics, name: &str) -> f64 {
    let name = match name {
        "correction/effective_sample_size" => metric::CORRECTION_ESS,
        "value_clip_ratio" => metric::VALUE_CLIP_RATIO,
        "explained_variance" => metric::VALUE_EXPLAINED_VARIANCE,
        other => other,
    };
    let named = metrics.named();
    named.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} is not measured")).1
}

impl LossCase {
    /// The loss, and whether its proximal policy is interpolated.
    fn loss(&self) -> (PolicyLoss, bool) {
        // The process-reward model of `prime` has its own loss.
        if self.method == "prime_prm" {
            let beta = self.settings["advantage"]["beta"].as_f64().expect(&self.name);
            let surrogate = Surrogate::ImplicitReward(ImplicitReward { beta });
            return (PolicyLoss::new(surrogate, Aggregation::SequenceMean), false);
        }
        let settings: AlgorithmSettings = serde_json::from_value(self.settings.clone()).expect(&self.name);
        let method: Method = self.method.parse().expect(&self.name);
        let algorithm = Algorithm::resolve(method, &settings, self.max_staleness).expect(&self.name);
        (algorithm.loss, algorithm.proximal == Proximal::LogLinear)
    }

    fn check(&self, inputs: &Inputs) {
        let name = &self.name;
        let (loss, is_interpolated) = self.loss();
        let mut step = inputs.step();
        if is_interpolated {
            step.interpolation.clone_from(&inputs.alpha);
            step.old.clear();
        }
        if loss.value.is_some() {
            step.value.clone_from(&inputs.value);
        }
        let whole = 0..step.lengths.len();
        // Selected tokens draw the smallest numbers; ineligible tokens draw even smaller ones.
        let picked = self.picked.as_deref().unwrap_or_default();
        let draw = |position: u64| u64::from(!picked.contains(&position));
        let grad = step.parts(&loss, &[whole], &draw).expect(name).remove(0);
        let metrics = grad.terms.finish(&step.counts()).expect(name);
        if let Some(loss) = self.loss {
            assert!(close(metrics.loss, loss), "{name}: loss {} wanted {loss}", metrics.loss);
        }
        all_close(&format!("{name}: d_logprob"), &grad.d_logprob, &self.d_logprob);
        all_close(&format!("{name}: d_entropy"), &grad.d_entropy, &self.d_entropy);
        if let Some(d_value) = &self.d_value {
            all_close(&format!("{name}: d_value"), &grad.d_value, d_value);
        }
        if let Some(wanted) = self.value_loss {
            let got = metrics.value_loss.expect(name);
            assert!(close(got, wanted), "{name}: value loss {got} wanted {wanted}");
        }
        if self.picked.is_some() {
            let share = picked.len() as f64 / step.logprob.len() as f64;
            assert!(close(metrics.cov_picked_ratio.expect(name), share), "{name}: picked");
        }
        check_metrics(name, &metrics, &self.metrics);
    }
}

fn check_metrics(name: &str, metrics: &LossMetrics, wanted: &BTreeMap<String, f64>) {
    for (key, &wanted) in wanted {
        let got = metric_of(metrics, key);
        assert!(close(got, wanted), "{name}: {key} is {got}, wanted {wanted}");
    }
}

fn check(golden: &Golden) {
    for case in &golden.losses {
        case.check(&golden.inputs[&case.inputs]);
    }
    for case in &golden.values {
        let name = &case.name;
        let inputs = &golden.inputs[&case.inputs];
        let step = Step { value: inputs.value.clone(), ..inputs.step() };
        let spec = ValueLoss { coef: 1.0, clip: case.clip };
        let grad = step.critic(&spec, 0..step.lengths.len()).expect(name);
        assert!(grad.d_logprob.is_empty() && grad.d_entropy.is_empty(), "{name}");
        let metrics = grad.terms.finish(&step.counts()).expect(name);
        assert!(close(metrics.loss, case.value_loss), "{name}: {} {}", metrics.loss, case.value_loss);
        assert_eq!(metrics.value_loss, Some(metrics.loss), "{name}");
        all_close(&format!("{name}: d_value"), &grad.d_value, &case.d_value);
        check_metrics(name, &metrics, &case.metrics);
    }
}

#[test]
fn losses_of_the_papers() {
    let golden = read(PAPERS);
    assert!(golden.losses.len() > 400 && golden.values.len() > 10);
    check(&golden);
}

#[test]
fn single_losses() {
    for (name, json) in of_single_losses() {
        let golden = read(&json);
        assert!(golden.losses.len() >= 10, "{name}");
        check(&golden);
    }
}

#[test]
fn losses_of_trl() {
    let golden = read(TRL);
    assert!(golden.losses.len() > 20);
    check(&golden);
}

#[test]
fn losses_of_verl() {
    let golden = read(VERL);
    assert!(golden.losses.len() >= 80);
    check(&golden);
}
