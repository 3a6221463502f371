use rloom_core::{Role, metric};

use super::moments::no_spread;
use super::view::GroupView;
use super::{AdvantageSpec, EpisodeRewards};

/// Counts and means over the batch, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AdvantageReport {
    /// True if the estimator compares the episodes of a group.
    pub compares: bool,
    /// Groups with at least one applicable reward.
    pub groups: usize,
    /// Of `groups`, those whose applicable rewards are all equal before the KL penalty, including groups of one.
    pub zero_spread_groups: usize,
    /// Of `groups`, those with a single comparable episode, whose advantage is 0.
    pub groups_of_one: usize,
    /// Training episodes with an applicable reward, which are compared.
    pub episodes: usize,
    /// Training episodes without an applicable reward.
    pub not_applicable: usize,
    /// Groups whose greedy episode has no applicable reward, so that the others get 0 ([`crate::Estimator::Remax`]).
    pub baselines_missing: usize,
    /// Groups without a kept episode ([`crate::Estimator::RaftPp`]).
    pub none_kept: usize,
    /// True if the rewards of every group are equal, so that there is no gradient ([`crate::Estimator::Gpg`]).
    pub no_contrast: bool,
    /// Steps of the compared episodes ([`crate::Estimator::Gigpo`]).
    pub steps: usize,
    /// Of `steps`, those whose state occurs only once among those that are compared.
    pub states_seen_once: usize,
    /// Mean of k1 over the trained policy tokens (nats), the input of [`KlControl`](crate::KlControl); `None` without
    /// KL in the reward.
    pub kl: Option<f64>,
    /// Mean value over the trained policy tokens ([`crate::Estimator::Gae`]).
    pub value: Option<f64>,
}

impl AdvantageReport {
    /// Fraction of groups with equal rewards; `None` without groups.
    pub fn frac_zero_spread(&self) -> Option<f64> {
        (self.groups > 0).then(|| self.zero_spread_groups as f64 / self.groups as f64)
    }

    /// The measured values and non-zero counts, by name.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let count = |n: usize| (n > 0).then_some(n as f64);
        let once = (self.steps > 0).then(|| self.states_seen_once as f64 / self.steps as f64);
        [
            (metric::FRAC_REWARD_ZERO_STD, self.frac_zero_spread().filter(|_| self.compares)),
            (metric::GROUPS_OF_ONE, count(self.groups_of_one)),
            (metric::REWARDS_NOT_APPLICABLE, count(self.not_applicable)),
            (metric::BASELINES_MISSING, count(self.baselines_missing)),
            (metric::GROUPS_NONE_KEPT, count(self.none_kept)),
            (metric::BATCH_NO_CONTRAST, count(usize::from(self.no_contrast))),
            (metric::FRAC_STATES_SEEN_ONCE, once),
            (metric::REWARD_KL_PENALTY, self.kl),
            (metric::VALUE_MEAN, self.value),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|v| (name, v)))
        .collect()
    }

    /// The counts and means that are known before the advantages.
    pub(super) fn of(spec: &AdvantageSpec, groups: &[GroupView<'_>]) -> Self {
        let mut report = Self { compares: spec.estimator.needs_group(), ..Self::default() };
        for group in groups {
            let train = group.episodes.iter().filter(|e| e.role == Role::Train);
            report.not_applicable += train.filter(|e| e.reward.is_none()).count();
            let rewards = group.episodes.iter().filter_map(EpisodeRewards::compared);
            let present = rewards.clone().count();
            report.episodes += present;
            if present > 0 {
                report.groups += 1;
                report.zero_spread_groups += usize::from(no_spread(rewards));
                report.groups_of_one += usize::from(group.alone);
            }
        }
        let trained = || groups.iter().flat_map(|g| g.episodes).filter(|e| e.compared().is_some());
        if spec.kl_coef != 0.0 {
            report.kl = mean(trained().flat_map(EpisodeRewards::k1));
        }
        if spec.estimator.kernel().reads().values {
            report.value = mean(trained().flat_map(|e| e.values).map(|&v| f64::from(v)));
        }
        report
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / count as f64)
}
