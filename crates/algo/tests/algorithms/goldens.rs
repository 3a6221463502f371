//! Against numbers made by `golden/from_papers.py` and `golden/from_trl.py`.

use std::collections::BTreeMap;

use rloom_algo::{
    Algorithm, AlgorithmSettings, EpisodeRewards, GroupRewards, LossMetrics, Method, advantages,
};
use rloom_core::Role;
use serde::Deserialize;

use crate::step::Step;

#[derive(Deserialize)]
struct Golden {
    inputs: BTreeMap<String, Inputs>,
    losses: Vec<LossCase>,
    groups: Groups,
    advantages: Vec<AdvantageCase>,
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
}

#[derive(Deserialize)]
struct LossCase {
    name: String,
    method: Method,
    settings: AlgorithmSettings,
    inputs: String,
    /// Absent where the library's value is another by a constant.
    loss: Option<f64>,
    d_logprob: Vec<f64>,
    d_entropy: Vec<f64>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Groups {
    rewards: Vec<Vec<Option<f64>>>,
    tokens: Vec<Vec<usize>>,
    old: Vec<Vec<Vec<f32>>>,
    reference: Vec<Vec<Vec<f32>>>,
}

#[derive(Deserialize)]
struct AdvantageCase {
    name: String,
    method: Method,
    settings: AlgorithmSettings,
    advantage: Vec<Vec<Vec<f64>>>,
}

const PAPERS: &str = include_str!("../golden/from_papers.json");
const TRL: &str = include_str!("../golden/from_trl.json");

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

fn metric(metrics: &LossMetrics, name: &str) -> f64 {
    let named = metrics.named();
    named.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} is not measured")).1
}

fn check_losses(golden: &Golden) {
    for case in &golden.losses {
        let name = &case.name;
        let algorithm = Algorithm::resolve(case.method, &case.settings).expect(name);
        let x = &golden.inputs[&case.inputs];
        let step = Step {
            lengths: x.lengths.clone(),
            completion_limit: x.completion_limit,
            logprob: x.logprob.clone(),
            entropy: x.entropy.clone(),
            advantage: x.advantage.clone(),
            old: x.old.clone(),
            reference: x.reference.clone(),
        };
        let grad = step.loss(&algorithm.loss).expect(name);
        let metrics = grad.terms.finish(&step.counts()).expect(name);
        if let Some(loss) = case.loss {
            assert!(close(metrics.loss, loss), "{name}: loss {} wanted {loss}", metrics.loss);
        }
        all_close(&format!("{name}: d_logprob"), &grad.d_logprob, &case.d_logprob);
        all_close(&format!("{name}: d_entropy"), &grad.d_entropy, &case.d_entropy);
        for (key, &wanted) in &case.metrics {
            let got = metric(&metrics, key);
            assert!(close(got, wanted), "{name}: {key} is {got}, wanted {wanted}");
        }
    }
}

fn check_advantages(golden: &Golden) {
    let g = &golden.groups;
    let groups: Vec<GroupRewards<'_>> = g
        .rewards
        .iter()
        .enumerate()
        .map(|(i, rewards)| GroupRewards {
            episodes: rewards
                .iter()
                .enumerate()
                .map(|(e, &reward)| EpisodeRewards {
                    role: Role::Train,
                    reward,
                    tokens: g.tokens[i][e],
                    old_logprob: &g.old[i][e],
                    reference_logprob: &g.reference[i][e],
                })
                .collect(),
        })
        .collect();
    for case in &golden.advantages {
        let name = &case.name;
        let algorithm = Algorithm::resolve(case.method, &case.settings).expect(name);
        let got = advantages(&algorithm.advantage.expect(name), &groups).expect(name);
        for (i, row) in case.advantage.iter().enumerate() {
            for (e, wanted) in row.iter().enumerate() {
                let mut tokens = Vec::new();
                got.episodes[i][e].extend_into(0..wanted.len(), &mut tokens);
                all_close(&format!("{name}: group {i}, episode {e}"), &tokens, wanted);
            }
        }
    }
}

#[test]
fn losses_of_the_papers() {
    let golden = read(PAPERS);
    assert!(golden.losses.len() > 40);
    check_losses(&golden);
}

#[test]
fn advantages_of_the_papers() {
    let golden = read(PAPERS);
    assert!(golden.advantages.len() > 10);
    check_advantages(&golden);
}

#[test]
fn losses_of_trl() {
    let golden = read(TRL);
    assert_eq!(golden.losses.len(), 14);
    check_losses(&golden);
}

#[test]
fn advantages_of_trl() {
    let golden = read(TRL);
    assert_eq!(golden.advantages.len(), 4);
    check_advantages(&golden);
}
