//! Advantages compared with reference values from the programs in `golden/`.

use std::collections::BTreeMap;

use rloom_algo::{
    Advantages, Algorithm, AlgorithmSettings, EpisodeRewards, GroupRewards, Method, RunningMoments,
    StepReward, advantages,
};
use rloom_core::Role;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    groups: BTreeMap<String, Groups>,
    advantages: Vec<Case>,
}

/// `[group][episode]`, and `[token]` where it is per token. Missing values are empty.
#[derive(Deserialize)]
struct Groups {
    rewards: Vec<Vec<Option<f64>>>,
    tokens: Vec<Vec<usize>>,
    old: Vec<Vec<Vec<f32>>>,
    reference: Vec<Vec<Vec<f32>>>,
    /// Reward of the greedy episode of each group.
    #[serde(default)]
    baseline: Vec<Option<f64>>,
    #[serde(default)]
    values: Vec<Vec<Vec<f32>>>,
    #[serde(default)]
    last_value: Vec<Vec<Option<f32>>>,
    #[serde(default)]
    components: Vec<Vec<Vec<Component>>>,
    #[serde(default)]
    steps: Vec<Vec<Vec<Step>>>,
    #[serde(default)]
    prm: Vec<Vec<Vec<f32>>>,
    #[serde(default)]
    prm_reference: Vec<Vec<Vec<f32>>>,
}

#[derive(Deserialize)]
struct Component {
    weight: f64,
    value: Option<f64>,
}

#[derive(Deserialize)]
struct Step {
    start: usize,
    end: usize,
    reward: f64,
    state: Option<String>,
}

impl Step {
    fn reward(&self) -> StepReward<'_> {
        StepReward { tokens: (self.start, self.end), reward: self.reward, state: self.state.as_deref() }
    }
}

#[derive(Deserialize)]
struct Case {
    name: String,
    method: Method,
    settings: AlgorithmSettings,
    groups: String,
    advantage: Vec<Vec<Vec<f64>>>,
    /// `None` if no reward applies.
    #[serde(default)]
    returns: Vec<Vec<Option<Vec<f64>>>>,
    running_before: Option<Moments>,
    running_after: Option<Moments>,
}

#[derive(Deserialize, Clone, Copy)]
struct Moments {
    count: u64,
    mean: f64,
    m2: f64,
}

impl Moments {
    /// Moments with possible extremes for this mean.
    fn before(self) -> RunningMoments {
        let (low, high) = if self.count == 0 { (0.0, 0.0) } else { (self.mean - 1.0, self.mean + 1.0) };
        RunningMoments { count: self.count, mean: self.mean, m2: self.m2, low, high }
    }
}

/// `[group][episode][..]`.
type Nested<T> = Vec<Vec<Vec<T>>>;

fn at<T>(nested: &[Vec<Vec<T>>], group: usize, episode: usize) -> &[T] {
    nested.get(group).map_or(&[], |g| &g[episode][..])
}

impl Case {
    fn advantages(&self, x: &Groups) -> Advantages {
        let spec = Algorithm::resolve(self.method, &self.settings, 0).expect(&self.name).advantage;
        let components: Nested<(f64, Option<f64>)> = x
            .components
            .iter()
            .map(|g| g.iter().map(|e| e.iter().map(|c| (c.weight, c.value)).collect()).collect())
            .collect();
        let steps: Nested<StepReward<'_>> = x
            .steps
            .iter()
            .map(|g| g.iter().map(|e| e.iter().map(Step::reward).collect()).collect())
            .collect();
        let of_episode = |g: usize, e: usize| EpisodeRewards {
            role: Role::Train,
            reward: x.rewards[g][e],
            tokens: x.tokens[g][e],
            old_logprob: &x.old[g][e],
            reference_logprob: &x.reference[g][e],
            components: at(&components, g, e),
            values: at(&x.values, g, e),
            last_value: x.last_value.get(g).and_then(|g| g[e]),
            round_values: &[],
            steps: at(&steps, g, e),
            prm_logprob: at(&x.prm, g, e),
            prm_reference_logprob: at(&x.prm_reference, g, e),
            given: &[],
            agents: &[],
        };
        let greedy = |g: usize| {
            let reward = x.baseline.get(g).copied()?;
            Some(EpisodeRewards { role: Role::Baseline, ..EpisodeRewards::new(reward, 2) })
        };
        let groups: Vec<GroupRewards<'_>> = (0..x.rewards.len())
            .map(|g| GroupRewards {
                episodes: (0..x.rewards[g].len()).map(|e| of_episode(g, e)).chain(greedy(g)).collect(),
            })
            .collect();
        let running = self.running_before.map(Moments::before).unwrap_or_default();
        advantages(&spec.expect(&self.name), &running, &groups).expect(&self.name)
    }

    fn check(&self, x: &Groups) {
        let name = &self.name;
        let got = self.advantages(x);
        for (g, row) in self.advantage.iter().enumerate() {
            for (e, wanted) in row.iter().enumerate() {
                let mut tokens = Vec::new();
                got.episodes[g][e].extend_into(0..wanted.len(), &mut tokens);
                all_close(&format!("{name}: group {g}, episode {e}"), &tokens, wanted);
            }
        }
        for (g, row) in self.returns.iter().enumerate() {
            for (e, wanted) in row.iter().enumerate() {
                let what = format!("{name}: returns of group {g}, episode {e}");
                match wanted {
                    Some(wanted) => all_close(&what, &got.returns[g][e], wanted),
                    None => assert_eq!(got.returns[g][e], x.values[g][e], "{what}"),
                }
            }
        }
        assert_eq!(self.returns.is_empty(), got.returns.is_empty(), "{name}");
        match self.running_after {
            None => assert_eq!(got.running, RunningMoments::default(), "{name}"),
            Some(after) => {
                let RunningMoments { count, mean, m2, .. } = got.running;
                assert_eq!(count, after.count, "{name}");
                assert!(close(mean, after.mean) && close(m2, after.m2), "{name}: {:?}", got.running);
            }
        }
    }
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

fn check(json: &str, cases: usize) {
    let golden: Golden = serde_json::from_str(json).expect("a golden file");
    assert_eq!(golden.advantages.len(), cases);
    for case in &golden.advantages {
        case.check(&golden.groups[&case.groups]);
    }
}

#[test]
fn of_the_papers() {
    check(include_str!("../golden/from_papers.json"), 108);
}

#[test]
fn of_trl() {
    check(include_str!("../golden/from_trl.json"), 5);
}

#[test]
fn of_verl() {
    check(include_str!("../golden/from_verl.json"), 25);
}
