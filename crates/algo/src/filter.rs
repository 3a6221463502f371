//! Groups and episodes that are not trained on.

use rloom_core::{Episode, Role};

use crate::advantage::{kept, no_spread};
use crate::settings::choices::choices;
use crate::{AlgorithmFunction, GroupRewards, Keep, best_and_worst};

/// Filters of groups and masks of episodes.
#[expect(clippy::struct_excessive_bools, reason = "a record of independent filters")]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Filters {
    /// Replaces groups whose outcomes are all equal (DAPO, arXiv 2503.14476).
    pub dynamic_sampling: bool,
    /// Replaces groups of which no episode is kept (`raft_pp`).
    pub keep: Option<Keep>,
    /// Replaces groups without a best and a worst episode (`online_dpo`).
    pub pairs: bool,
    /// Replaces groups that this Python function does not keep.
    pub function: Option<AlgorithmFunction>,
    /// Batches' worth of groups that may be drawn for one batch; 0 if no filter replaces groups.
    pub max_draws: u32,
    /// Excludes truncated episodes from training.
    pub mask_truncated: bool,
    /// Excludes groups with equal rewards from training, including KL and entropy.
    pub mask_zero_variance: bool,
    /// Minimum number of policy tokens of a trained episode.
    pub min_tokens: Option<u64>,
    /// Maximum number of policy tokens of a trained episode.
    pub max_tokens: Option<u64>,
}

choices! {
    /// Reason to replace a group by another. Its name follows [`rloom_core::metric::FILTERED_PREFIX`].
    FilterReason {
        /// No outcome applies to any of its episodes.
        NoOutcome = "no_outcome",
        /// Its outcomes are all equal.
        EqualOutcomes = "equal_outcomes",
        /// Its mean reward is at or below the bound of its domain.
        TooHard = "too_hard",
        /// Its mean reward is at or above the bound of its domain.
        TooEasy = "too_easy",
        /// The standard deviation of its rewards is at or below the bound of its domain.
        LowSpread = "low_spread",
        /// None of its episodes is kept.
        NoneKept = "none_kept",
        /// No two of its rewards differ.
        TiedRewards = "tied_rewards",
        /// A Python function does not keep it.
        Function = "function",
    }
}

choices! {
    /// Reason not to train on an episode. Its name follows [`rloom_core::metric::MASKED_PREFIX`].
    MaskReason {
        /// The episode was truncated.
        Truncated = "truncated",
        /// The rewards of its group are all equal.
        ZeroVariance = "zero_variance",
        /// It has fewer policy tokens than required.
        TooShort = "too_short",
        /// It has more policy tokens than are allowed.
        TooLong = "too_long",
    }
}

impl Filters {
    /// True if a group can be replaced by another before training.
    pub fn replaces_groups(&self) -> bool {
        self.dynamic_sampling || self.keep.is_some() || self.pairs || self.function.is_some()
    }

    /// True if an episode can be left out of training.
    pub fn masks_episodes(&self) -> bool {
        self.mask_truncated
            || self.mask_zero_variance
            || self.min_tokens.is_some()
            || self.max_tokens.is_some()
    }

    /// The reward by which an episode is kept or paired. One without tokens of the policy is no part of a pair.
    pub fn compared_reward(&self, episode: &Episode) -> Option<f64> {
        episode.rewards.total().filter(|_| !self.pairs || episode.policy_tokens() > 0)
    }

    /// The reason to replace a group; `None` if it is to be trained on, as far as no Python function decides.
    ///
    /// Dynamic sampling compares the `outcomes` of the training episodes, which precede any shaping, up to the
    /// resolution of `f32`; a length penalty would create differences unrelated to the task. The episodes to keep
    /// follow from their `rewards`, as in the advantage, and so does the pair of a group. Both are `None` for episodes to which
    /// they do not apply.
    pub fn verdict(&self, outcomes: &[Option<f64>], rewards: &[Option<f64>]) -> Option<FilterReason> {
        if self.pairs && best_and_worst(rewards).is_none() {
            let has_reward = rewards.iter().any(Option::is_some);
            return Some(if has_reward { FilterReason::TiedRewards } else { FilterReason::NoOutcome });
        }
        if !self.dynamic_sampling && self.keep.is_none() {
            return None;
        }
        let present = outcomes.iter().flatten().copied();
        let count = present.clone().count();
        if count == 0 {
            return Some(FilterReason::NoOutcome);
        }
        if let Some(keep) = self.keep {
            // A single episode is not kept as the best: its advantage would be 0.
            let alone = keep == Keep::Best && rewards.iter().flatten().count() < 2;
            if alone || !kept(keep, rewards).contains(&true) {
                return Some(FilterReason::NoneKept);
            }
        }
        (self.dynamic_sampling && no_spread(present)).then_some(FilterReason::EqualOutcomes)
    }

    /// Reason to exclude each episode of a group from surrogate, KL and entropy; `None` if it is trained on. Episodes
    /// that are not for training have no reason.
    ///
    /// A masked episode remains part of its group's baseline and of every count. `truncated` flags truncated episodes
    /// and may be shorter than the group.
    pub fn masks(&self, group: &GroupRewards<'_>, truncated: &[bool]) -> Vec<Option<MaskReason>> {
        let rewards = group.episodes.iter().filter_map(crate::EpisodeRewards::compared);
        let zero_variance = self.mask_zero_variance && no_spread(rewards);
        let reason = |(i, e): (usize, &crate::EpisodeRewards<'_>)| {
            let tokens = e.tokens as u64;
            if e.role != Role::Train {
                None
            } else if self.mask_truncated && truncated.get(i) == Some(&true) {
                Some(MaskReason::Truncated)
            } else if self.min_tokens.is_some_and(|min| tokens < min) {
                Some(MaskReason::TooShort)
            } else if self.max_tokens.is_some_and(|max| tokens > max) {
                Some(MaskReason::TooLong)
            } else {
                zero_variance.then_some(MaskReason::ZeroVariance)
            }
        };
        group.episodes.iter().enumerate().map(reason).collect()
    }
}
