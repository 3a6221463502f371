//! Random groups with the inputs of all estimators, for properties.

use proptest::prelude::*;
use rloom_algo::estimators::{
    Gae, Gdpo, Gigpo, Gpg, Group, GroupMean, MaxAtG, Normalized, Opo, Prime, RaftPp, ReinforcePp,
    ReinforcePpBaseline, Remax, Rloo, Topr,
};
use rloom_algo::{EpisodeRewards, Estimator, GroupRewards, Keep, StatesFrom, StatisticFrom, StepReward};
use rloom_core::{Purpose, RandomKey, Role};

/// An episode's numbers, owned.
#[derive(Debug, Clone)]
pub(crate) struct Episode {
    pub(crate) role: Role,
    pub(crate) reward: Option<f64>,
    pub(crate) tokens: usize,
    pub(crate) old: Vec<f32>,
    pub(crate) reference: Vec<f32>,
    pub(crate) components: Vec<(f64, Option<f64>)>,
    pub(crate) values: Vec<f32>,
    pub(crate) last_value: Option<f32>,
    pub(crate) steps: Vec<StepReward<'static>>,
    pub(crate) prm: Vec<f32>,
    pub(crate) prm_reference: Vec<f32>,
}

impl Episode {
    /// Everything but reward and length is derived from `seed`.
    pub(crate) fn new(reward: Option<f64>, tokens: usize, seed: u64) -> Self {
        let stream = RandomKey::new(3, 0, Purpose::Algorithm, seed).stream();
        let mut at = 0;
        let mut uniform = || {
            at += 1;
            stream.uniform(at)
        };
        let mut row = || -> Vec<f32> { (0..tokens).map(|_| (uniform() * 2.0 - 2.0) as f32).collect() };
        let (old, reference, values, prm, prm_reference) = (row(), row(), row(), row(), row());
        let mut steps = Vec::new();
        let mut start = 0;
        while start < tokens {
            let end = (start + 1 + (uniform() * 2.0) as usize).min(tokens);
            let state = [Some("door"), Some("hall"), Some("cave"), None][(uniform() * 4.0) as usize];
            steps.push(StepReward { tokens: (start, end), reward: uniform(), state });
            // Some tokens do not belong to a step.
            start = end + usize::from(uniform() < 0.2);
        }
        let components = vec![(1.0, reward), (0.5, Some(uniform()).filter(|&u| u < 0.7))];
        let last_value = Some(uniform() as f32).filter(|&v| v < 0.4);
        Self {
            role: Role::Train,
            reward,
            tokens,
            old,
            reference,
            components,
            values,
            last_value,
            steps,
            prm,
            prm_reference,
        }
    }

    pub(crate) fn greedy(reward: Option<f64>) -> Self {
        Self { role: Role::Baseline, ..Self::new(reward, 2, 1) }
    }

    fn view(&self) -> EpisodeRewards<'_> {
        EpisodeRewards {
            role: self.role,
            reward: self.reward,
            tokens: self.tokens,
            old_logprob: &self.old,
            reference_logprob: &self.reference,
            components: &self.components,
            values: &self.values,
            last_value: self.last_value,
            round_values: &[],
            steps: &self.steps,
            prm_logprob: &self.prm,
            prm_reference_logprob: &self.prm_reference,
            given: &[],
            agents: &[],
        }
    }
}

/// `[group][episode]`.
pub(crate) type Batch = Vec<Vec<Episode>>;

pub(crate) fn view(batch: &[Vec<Episode>]) -> Vec<GroupRewards<'_>> {
    batch.iter().map(|g| GroupRewards { episodes: g.iter().map(Episode::view).collect() }).collect()
}

fn reward() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![1 => Just(None), 2 => Just(Some(0.0)), 2 => Just(Some(1.0)), 5 => (-2.0f64..2.0).prop_map(Some)]
}

/// Reward, length, seed.
type Seed = (Option<f64>, usize, u64);

/// Groups of different sizes, each with a greedy episode as its last.
pub(crate) fn batches() -> impl Strategy<Value = Batch> {
    let group = prop::collection::vec((reward(), 0usize..6, any::<u64>()), 1..6);
    prop::collection::vec((group, reward()), 1..5).prop_map(|groups| {
        let of_group = |(episodes, baseline): (Vec<Seed>, Option<f64>)| {
            let train = episodes.into_iter().map(|(r, tokens, seed)| Episode::new(r, tokens, seed));
            train.chain([Episode::greedy(baseline)]).collect()
        };
        groups.into_iter().map(of_group).collect()
    })
}

pub(crate) const GROUP: Estimator = normalized(StatisticFrom::Group, StatisticFrom::Group);
pub(crate) const GROUP_MEAN: Estimator = normalized(StatisticFrom::Group, StatisticFrom::None);

pub(crate) const fn normalized(mean_from: StatisticFrom, std_from: StatisticFrom) -> Estimator {
    Estimator::Normalized(Normalized { mean_from, std_from, std_epsilon: 1e-4 })
}

const GIGPO: Gigpo = Gigpo {
    divide_by_std: true,
    std_epsilon: 1e-4,
    gamma: 0.95,
    episode_weight: 1.0,
    step_weight: 1.0,
    states_from: StatesFrom::Group,
};

/// Every estimator, with different settings.
pub(crate) const EVERY: [Estimator; 26] = [
    Estimator::Group(Group { std_epsilon: 1e-4 }),
    Estimator::GroupMean(GroupMean {}),
    Estimator::ReinforcePpBaseline(ReinforcePpBaseline {}),
    GROUP,
    GROUP_MEAN,
    normalized(StatisticFrom::Group, StatisticFrom::Batch),
    normalized(StatisticFrom::Batch, StatisticFrom::Batch),
    normalized(StatisticFrom::Running, StatisticFrom::Running),
    Estimator::Rloo(Rloo {}),
    Estimator::ReinforcePp(ReinforcePp { gamma: 0.9 }),
    Estimator::Gae(Gae { gamma: 0.9, lambda: 0.8 }),
    Estimator::Remax(Remax {}),
    Estimator::Opo(Opo {}),
    Estimator::Gpg(Gpg {}),
    Estimator::MaxAtG(MaxAtG { divide_by_std: false, std_epsilon: 1e-4 }),
    Estimator::MaxAtG(MaxAtG { divide_by_std: true, std_epsilon: 1e-4 }),
    Estimator::Gdpo(Gdpo { std_epsilon: 1e-4 }),
    Estimator::RaftPp(RaftPp { keep: Keep::Positive }),
    Estimator::RaftPp(RaftPp { keep: Keep::Best }),
    Estimator::Topr(Topr { baseline: 0.5 }),
    Estimator::Gigpo(GIGPO),
    Estimator::Gigpo(Gigpo { gamma: 0.5, step_weight: 2.0, divide_by_std: false, ..GIGPO }),
    Estimator::Gigpo(Gigpo { states_from: StatesFrom::Batch, ..GIGPO }),
    Estimator::Gigpo(Gigpo { states_from: StatesFrom::Batch, episode_weight: 0.0, ..GIGPO }),
    Estimator::Gigpo(Gigpo { states_from: StatesFrom::BatchOthers, ..GIGPO }),
    Estimator::Prime(Prime { gamma: 0.9, beta: 0.5 }),
];
