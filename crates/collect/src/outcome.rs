//! Outcomes of episodes: rewards before shaping.

use rloom_core::{RewardComponent, Rewards};
use rloom_reward::DomainSet;

/// Name of the reward component added by the overlong penalty. With the penalty enabled, the configuration rejects
/// another component of that name.
const OVERLONG: &str = "overlong";

/// Adds the overlong penalty to a reward. An episode without an applicable reward stays without one.
pub(crate) fn add_overlong_penalty(rewards: &mut Rewards, penalty: f64) {
    if rewards.total().is_some() {
        rewards.components.push(RewardComponent::new(OVERLONG, 1.0, Some(penalty)));
    }
}

/// Derives the outcome of an episode from its rewards.
#[derive(Debug, Clone, Default)]
pub struct OutcomeRule {
    /// Domains in which a reward component is a verifier.
    pub verified: DomainSet,
    /// True if the overlong penalty is one of the components.
    pub is_shaped: bool,
}

impl OutcomeRule {
    /// Returns the verifier's verdict (1 or 0) on an episode of a task of `domain`, or without a verifier the reward less the
    /// overlong penalty; `None` if neither applies to the episode.
    pub fn outcome(&self, domain: &str, rewards: &Rewards) -> Option<f64> {
        if self.verified.contains(domain) {
            return rewards.solved.map(|solved| f64::from(u8::from(solved)));
        }
        self.unshaped(rewards)
    }

    /// Returns the reward less the overlong penalty.
    pub fn unshaped(&self, rewards: &Rewards) -> Option<f64> {
        let shaping = |c: &RewardComponent| self.is_shaped && c.name == OVERLONG;
        let unshaped = rewards.components.iter().filter(|c| !shaping(c)).cloned().collect();
        Rewards { components: unshaped, ..rewards.clone() }.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_rewards_do_not_replace_a_verifier_that_does_not_apply() {
        let random = RewardComponent::new("random", 0.5, Some(1.0));
        let mut rewards = Rewards { components: vec![random], ..Rewards::default() };
        add_overlong_penalty(&mut rewards, -0.25);
        assert_eq!(rewards.total(), Some(0.25));
        let verified = DomainSet::Only(["verified".to_owned()].into());
        let outcome = |domain, is_shaped, rewards: &Rewards| {
            OutcomeRule { verified: verified.clone(), is_shaped }.outcome(domain, rewards)
        };
        assert_eq!(outcome("verified", true, &rewards), None);
        assert_eq!(outcome("other", true, &rewards), Some(0.5));
        assert_eq!(outcome("other", false, &rewards), Some(0.25));
        rewards.solved = Some(false);
        assert_eq!(outcome("verified", true, &rewards), Some(0.0));
    }
}
