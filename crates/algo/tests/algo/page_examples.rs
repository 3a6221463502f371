//! Runs the worked example of each page and compares it with the independent results of `golden/examples.py`.

use std::{collections::BTreeMap, iter::repeat_n, ops::Range};

use rloom_algo::{
    Algorithm, AlgorithmSettings, DistillationLoss, EpisodeRewards, GlobalCounts, GroupRewards, LossBatch,
    LossGrad, Method, PreferenceLoss, RewardLoss, RewardModelSpec, RunningMoments, StepLabel, StepReward,
    TokenScores, advantages, best_and_worst, distillation_loss, preference_step, reward_loss, step_loss,
    value_loss,
};
use rloom_core::Role;
use serde::Deserialize;

use crate::goldens::of_single_losses;

/// The `toml` block of a page: inputs and results of one optimiser step. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    loss: f64,
    value_loss: Option<f64>,
    /// Tokens selected by a loss of step scope, counted over the step.
    picked: Option<Vec<usize>>,
    /// Anchor of a preference loss.
    anchor: Option<f64>,
    /// Present if used.
    completion_limit: Option<u64>,
    group: Vec<Group>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    /// Reward of the greedy episode.
    baseline: Option<f64>,
    episode: Vec<Episode>,
}

impl Group {
    /// Keeps the best and the worst episode, labelled as chosen and rejected.
    fn make_pair(&mut self) {
        let rewards: Vec<Option<f64>> = self.episode.iter().map(|episode| episode.reward).collect();
        let (best, worst) = best_and_worst(&rewards).unwrap();
        let labelled = |index: usize, label| Episode { reward: Some(label), ..self.episode[index].clone() };
        self.episode = vec![labelled(best, 1.0), labelled(worst, 0.0)];
    }
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Episode {
    reward: Option<f64>,
    components: Vec<Component>,
    steps: Vec<Turn>,
    behavior: Vec<f64>,
    old: Vec<f64>,
    logprob: Vec<f64>,
    reference: Vec<f64>,
    /// At half the temperature.
    sharpened: Vec<f64>,
    /// The critic's before the step.
    values: Vec<f64>,
    /// The critic's now.
    value: Vec<f64>,
    last_value: Option<f64>,
    /// Of a pair, on its chosen completion.
    margin: Option<f64>,
    prm: Vec<f64>,
    prm_reference: Vec<f64>,
    /// From the teacher's distribution, over the whole vocabulary.
    divergence: Vec<f64>,
    // Results.
    advantage: Vec<f64>,
    returns: Vec<f64>,
    d_logprob: Vec<f64>,
    d_value: Vec<f64>,
    d_last_value: Option<f64>,
    d_divergence: Vec<f64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Component {
    weight: f64,
    value: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    start: usize,
    end: usize,
    reward: f64,
    state: Option<String>,
}

/// The one `toml` block of a page.
fn example(method: Method) -> Example {
    let blocks: Vec<&str> = method.page().split("```toml\n").skip(1).collect();
    assert_eq!(blocks.len(), 1, "{method}: a page has one example");
    let block = blocks[0].split("```").next().unwrap();
    toml::from_str(block).unwrap_or_else(|e| panic!("docs/algorithms/{method}.md: {e}"))
}

fn flat_f32(example: &Example, get: fn(&Episode) -> &Vec<f64>) -> Vec<f32> {
    let episodes = example.group.iter().flat_map(|g| &g.episode);
    episodes.flat_map(get).map(|&x| x as f32).collect()
}

fn flat_f64(example: &Example, get: fn(&Episode) -> &Vec<f64>) -> Vec<f64> {
    example.group.iter().flat_map(|g| &g.episode).flat_map(get).copied().collect()
}

/// 1e-5 relative: numbers on a page have six digits. Zeros are exact.
#[track_caller]
fn close(what: &str, got: &[f32], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len(), "{what}: {got:?} {wanted:?}");
    let fits = |(&g, &w): (&f32, &f64)| (f64::from(g) - w).abs() <= 1e-5 * w.abs();
    assert!(got.iter().zip(wanted).all(fits), "{what}: the code has {got:?}, the page {wanted:?}");
}

/// Advantages and returns of every policy token.
fn run_advantages(name: &str, algorithm: &Algorithm, example: &Example) -> (Vec<f32>, Vec<f32>) {
    let f32s = |xs: &[f64]| xs.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    // Arrays that episodes borrow: old, reference, values, prm, prm_reference.
    let arrays: Vec<[Vec<f32>; 5]> = example
        .group
        .iter()
        .flat_map(|g| &g.episode)
        .map(|e| [&e.old, &e.reference, &e.values, &e.prm, &e.prm_reference].map(|xs| f32s(xs)))
        .collect();
    let turn = |t: &Turn| (t.start, t.end);
    let steps: Vec<Vec<StepReward<'_>>> = example
        .group
        .iter()
        .flat_map(|g| &g.episode)
        .map(|e| {
            let of = |t| StepReward::<'_> { tokens: turn(t), reward: t.reward, state: t.state.as_deref() };
            e.steps.iter().map(of).collect()
        })
        .collect();
    let components: Vec<Vec<(f64, Option<f64>)>> = example
        .group
        .iter()
        .flat_map(|g| &g.episode)
        .map(|e| e.components.iter().map(|c| (c.weight, c.value)).collect())
        .collect();
    let mut next = arrays.iter().zip(&steps).zip(&components);
    let mut episode = |e: &Episode| {
        let (([old, reference, values, prm, prm_reference], steps), components) = next.next().unwrap();
        EpisodeRewards {
            role: Role::Train,
            reward: e.reward,
            tokens: e.logprob.len(),
            old_logprob: old,
            reference_logprob: reference,
            components,
            values,
            last_value: e.last_value.map(|v| v as f32),
            round_values: &[],
            steps,
            prm_logprob: prm,
            prm_reference_logprob: prm_reference,
            given: &[],
            agents: &[],
        }
    };
    let groups: Vec<GroupRewards<'_>> = example
        .group
        .iter()
        .map(|g| {
            let mut episodes: Vec<_> = g.episode.iter().map(&mut episode).collect();
            let greedy = |r| EpisodeRewards { role: Role::Baseline, ..EpisodeRewards::new(Some(r), 1) };
            episodes.extend(g.baseline.map(greedy));
            GroupRewards { episodes }
        })
        .collect();
    let spec = algorithm.advantage.expect(name);
    let got = advantages(&spec, &RunningMoments::default(), &groups).expect(name);
    let mut of_tokens = Vec::new();
    for (group, row) in example.group.iter().zip(&got.episodes) {
        for (e, advantage) in group.episode.iter().zip(row) {
            advantage.extend_into(0..e.logprob.len(), &mut of_tokens);
        }
    }
    (of_tokens, got.returns.into_iter().flatten().flatten().collect())
}

/// The optimiser step: the policy's loss, and the critic's if there is one.
fn run_losses(
    name: &str,
    algorithm: &Algorithm,
    example: &Example,
    advantage: &[f32],
    returns: &[f32],
) -> (LossGrad, GlobalCounts, Option<LossGrad>) {
    let lengths: Vec<usize> =
        example.group.iter().flat_map(|g| &g.episode).map(|e| e.logprob.len()).collect();
    let mut end = 0;
    let rows: Vec<Range<usize>> = lengths
        .iter()
        .map(|n| {
            end += n;
            end - n..end
        })
        .collect();
    let given = |get| Some(flat_f32(example, get)).filter(|xs| !xs.is_empty());
    let (old, behavior) = (given(|e| &e.old), given(|e| &e.behavior));
    let (reference, old_value) = (given(|e| &e.reference), given(|e| &e.values));
    let sharpened = given(|e| &e.sharpened);
    let label = |e: &Episode| e.reward.unwrap_or_default() as f32;
    let outcome: Vec<f32> = example.group.iter().flat_map(|g| &g.episode).map(label).collect();
    let batch = LossBatch {
        rows: &rows,
        advantage: algorithm.advantage.map(|_| advantage),
        old_logprob: old.as_deref(),
        behavior_logprob: behavior.as_deref(),
        reference_logprob: reference.as_deref(),
        sharpened_logprob: sharpened.as_deref(),
        outcome: algorithm.preference.map(|_| &outcome[..]),
        returns: algorithm.critic.map(|_| returns),
        old_value: old_value.as_deref(),
        ..LossBatch::default()
    };
    let counts = GlobalCounts::of_lengths(lengths, example.completion_limit.unwrap_or(0));
    let scores = TokenScores {
        logprob: flat_f32(example, |e| &e.logprob),
        entropy: repeat_n(0.0, end).collect(),
        divergence: flat_f32(example, |e| &e.divergence),
        ..TokenScores::default()
    };
    if let Some(preference) = algorithm.preference {
        let loss = PreferenceLoss { preference, anchor: example.anchor.unwrap_or_default() };
        let mut grads = preference_step(&loss, &[batch], &[scores], &counts).expect(name);
        return (grads.remove(0), counts, None);
    }
    if let Some(distillation) = algorithm.distillation {
        let loss = DistillationLoss { distillation, aggregation: algorithm.loss.aggregation };
        return (distillation_loss(&loss, &batch, &scores, &counts).expect(name), counts, None);
    }
    let mut grads = step_loss(&algorithm.loss, &[batch], &[scores], &counts, &|token| token).expect(name);
    let critic = algorithm.critic.map(|critic| {
        let value = flat_f32(example, |e| &e.value);
        let scores = TokenScores { value, ..TokenScores::default() };
        value_loss(&critic.value, &batch, &scores, &counts).expect(name)
    });
    (grads.remove(0), counts, critic)
}

/// The optimiser step of a reward model.
fn run_rewards(name: &str, spec: RewardModelSpec, example: &Example) -> (LossGrad, GlobalCounts) {
    let episodes: Vec<&Episode> = example.group.iter().flat_map(|g| &g.episode).collect();
    let mut end = 0;
    let rows: Vec<Range<usize>> = episodes
        .iter()
        .map(|e| {
            end += e.value.len();
            end - e.value.len()..end
        })
        .collect();
    let of_all = |get: fn(&Episode) -> Option<f64>| -> Vec<f32> {
        episodes.iter().map(|e| get(e).unwrap_or_default() as f32).collect()
    };
    let (outcome, margin) = (of_all(|e| e.reward), of_all(|e| e.margin));
    let label = |t: &Turn| StepLabel { end: t.end, is_right: t.reward > 0.5 };
    let steps: Vec<Vec<StepLabel>> = episodes.iter().map(|e| e.steps.iter().map(label).collect()).collect();
    let batch = LossBatch {
        rows: &rows,
        outcome: Some(&outcome),
        margin: Some(&margin),
        steps: &steps,
        ..LossBatch::default()
    };
    let counts = GlobalCounts::of_lengths(episodes.iter().map(|e| e.value.len()), 0);
    let scores = TokenScores {
        value: flat_f32(example, |e| &e.value),
        last_value: of_all(|e| e.last_value),
        ..TokenScores::default()
    };
    let loss = match spec {
        RewardModelSpec::Sequence { center } => RewardLoss::Pairs { center },
        RewardModelSpec::Process => {
            RewardLoss::Steps { steps: steps.iter().map(Vec::len).sum::<usize>() as u64 }
        }
    };
    (reward_loss(&loss, &batch, &scores, &counts).expect(name), counts)
}

#[test]
fn examples_run() {
    for &method in Method::ALL {
        let (name, mut example) = (method.name(), example(method));
        let algorithm = Algorithm::preset(method).unwrap();
        if let Some(spec) = algorithm.reward_model {
            let (grad, counts) = run_rewards(name, spec, &example);
            let loss = grad.terms.finish(&counts).expect(name).loss as f32;
            close(&format!("{name}: loss"), &[loss], &[example.loss]);
            close(&format!("{name}: d_value"), &grad.d_value, &flat_f64(&example, |e| &e.d_value));
            let d_last: Vec<f64> =
                example.group.iter().flat_map(|g| &g.episode).map(|e| e.d_last_value.unwrap()).collect();
            close(&format!("{name}: d_last_value"), &grad.d_last_value, &d_last);
            continue;
        }
        if algorithm.samples_pairs() {
            example.group.iter_mut().for_each(Group::make_pair);
        }
        let (mut advantage, mut returns) = (Vec::new(), Vec::new());
        if algorithm.advantage.is_some() {
            (advantage, returns) = run_advantages(name, &algorithm, &example);
        }
        close(&format!("{name}: advantage"), &advantage, &flat_f64(&example, |e| &e.advantage));
        close(&format!("{name}: returns"), &returns, &flat_f64(&example, |e| &e.returns));
        let (grad, counts, critic) = run_losses(name, &algorithm, &example, &advantage, &returns);
        let metrics = grad.terms.finish(&counts).expect(name);
        close(&format!("{name}: loss"), &[metrics.loss as f32], &[example.loss]);
        close(&format!("{name}: d_logprob"), &grad.d_logprob, &flat_f64(&example, |e| &e.d_logprob));
        close(&format!("{name}: d_divergence"), &grad.d_divergence, &flat_f64(&example, |e| &e.d_divergence));
        let picked = example.picked.as_ref().map(|p| p.len() as f64 / counts.tokens as f64);
        assert_eq!(metrics.cov_picked_ratio, picked, "{name}: picked");
        let value_loss = critic.as_ref().map(|c| c.terms.loss() as f32);
        close(&format!("{name}: value_loss"), value_loss.as_slice(), example.value_loss.as_slice());
        let d_value = critic.map(|c| c.d_value).unwrap_or_default();
        close(&format!("{name}: d_value"), &d_value, &flat_f64(&example, |e| &e.d_value));
    }
}

/// An entry of `examples.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    settings: AlgorithmSettings,
    completion_limit: u64,
    anchor: Option<f64>,
    groups: Vec<Vec<Episode>>,
    baseline: Option<Vec<f64>>,
    expect: Expect,
}

/// The example of a single loss's golden file.
#[derive(Deserialize)]
struct OneLoss {
    example: Golden,
}

/// Per group, episode and token, or per episode and token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    advantage: Option<Vec<Vec<Vec<f64>>>>,
    returns: Option<Vec<Vec<Vec<f64>>>>,
    loss: f64,
    d_logprob: Vec<Vec<f64>>,
    value_loss: Option<f64>,
    d_value: Option<Vec<Vec<f64>>>,
    d_last_value: Option<Vec<f64>>,
    d_divergence: Option<Vec<Vec<f64>>>,
    picked: Option<Vec<usize>>,
}

impl Golden {
    /// Converts to the form of a page; `limit` is the page's limit, if any.
    fn into_example(self, limit: Option<u64>) -> Example {
        let Expect {
            advantage,
            returns,
            loss,
            d_logprob,
            value_loss,
            d_value,
            d_last_value,
            d_divergence,
            picked,
        } = self.expect;
        let mut advantage = advantage.into_iter().flatten().flatten();
        let mut returns = returns.into_iter().flatten().flatten();
        let (mut d_logprob, mut d_value) = (d_logprob.into_iter(), d_value.into_iter().flatten());
        let mut d_last_value = d_last_value.into_iter().flatten();
        let mut d_divergence = d_divergence.into_iter().flatten();
        let mut with_results = |e: Episode| Episode {
            advantage: advantage.next().unwrap_or_default(),
            returns: returns.next().unwrap_or_default(),
            d_logprob: d_logprob.next().unwrap(),
            d_value: d_value.next().unwrap_or_default(),
            d_last_value: d_last_value.next(),
            d_divergence: d_divergence.next().unwrap_or_default(),
            ..e
        };
        let baselines: Vec<Option<f64>> = match self.baseline {
            Some(baselines) => baselines.into_iter().map(Some).collect(),
            None => vec![None; self.groups.len()],
        };
        let group = self
            .groups
            .into_iter()
            .zip(baselines)
            .map(|(episodes, baseline)| Group {
                baseline,
                episode: episodes.into_iter().map(&mut with_results).collect(),
            })
            .collect();
        let anchor = self.anchor;
        Example {
            loss,
            value_loss,
            picked,
            anchor,
            completion_limit: limit.map(|_| self.completion_limit),
            group,
        }
    }
}

#[test]
fn examples_are_the_golden_ones() {
    let json = include_str!("../golden/examples.json");
    let mut golden: BTreeMap<String, Golden> = serde_json::from_str(json).expect("golden examples");
    for (name, json) in of_single_losses() {
        let example: OneLoss = serde_json::from_str(&json).expect(&name);
        golden.insert(name, example.example);
    }
    for &method in Method::ALL {
        let golden = golden.remove(method.name()).unwrap_or_else(|| panic!("no golden example of {method}"));
        assert_eq!(golden.settings, AlgorithmSettings::default(), "{method}: a page shows the preset");
        let page = example(method);
        let wanted = golden.into_example(page.completion_limit);
        assert_eq!(page, wanted, "docs/algorithms/{method}.md and golden/examples.json");
    }
    assert!(golden.is_empty());
}
