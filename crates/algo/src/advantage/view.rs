use super::moments::{RunningMoments, no_spread};
use super::{EpisodeRewards, Estimator, GroupRewards};

/// An episode's advantage, in `f64` until the end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    /// Excluded from training: stays 0 and is not whitened.
    Out,
    Constant(f64),
    PerToken(Vec<f64>),
}

/// The part of a group that the estimators read.
#[derive(Debug)]
pub(crate) struct GroupView<'a> {
    pub(crate) episodes: &'a [EpisodeRewards<'a>],
    /// Compared reward of each episode, less the KL penalty; `None` if the episode is excluded.
    pub(crate) rewards: Vec<Option<f64>>,
    /// True if the estimator compares episodes and at most one is left.
    pub(crate) alone: bool,
}

impl<'a> GroupView<'a> {
    pub(crate) fn new(group: &'a GroupRewards<'a>, estimator: &Estimator, kl_coef: f64) -> Self {
        let by_episode = kl_coef != 0.0 && !estimator.kernel().pays_kl_by_token();
        let rewards: Vec<Option<f64>> = group
            .episodes
            .iter()
            .map(|e| e.compared().map(|r| if by_episode { r - kl_coef * e.k1().sum::<f64>() } else { r }))
            .collect();
        let alone = estimator.needs_group() && rewards.iter().flatten().count() < 2;
        Self { episodes: &group.episodes, rewards, alone }
    }

    /// Compared rewards.
    pub(crate) fn present(&self) -> impl Iterator<Item = f64> + Clone {
        self.rewards.iter().flatten().copied()
    }

    pub(crate) fn moments(&self) -> RunningMoments {
        RunningMoments::of(self.present())
    }

    /// True if all compared rewards are equal.
    pub(crate) fn is_level(&self) -> bool {
        no_spread(self.present())
    }

    /// Compared episodes with their indices and rewards; none if `alone`.
    pub(crate) fn members(&self) -> impl Iterator<Item = (usize, &EpisodeRewards<'a>, f64)> + Clone {
        let rewards = if self.alone { &[] } else { &self.rewards[..] };
        let numbered = self.episodes.iter().zip(rewards).enumerate();
        numbered.filter_map(|(i, (e, reward))| reward.map(|r| (i, e, r)))
    }

    /// Result of `of` for the members; the others are [`Raw::Out`].
    pub(crate) fn each(&self, mut of: impl FnMut(usize, &EpisodeRewards<'a>, f64) -> Raw) -> Vec<Raw> {
        let mut raw = vec![Raw::Out; self.episodes.len()];
        for (i, e, reward) in self.members() {
            raw[i] = of(i, e, reward);
        }
        raw
    }

    /// One number for all tokens of each member, from its reward.
    pub(crate) fn shared(&self, of: impl Fn(f64) -> f64) -> Vec<Raw> {
        self.each(|_, _, reward| Raw::Constant(of(reward)))
    }
}
