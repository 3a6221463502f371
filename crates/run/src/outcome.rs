//! How an attempt ended, before anything is added to its reward to shape it.

use rloom_core::{RewardComponent, Rewards};

/// The name of the component that the penalty on overlong completions adds. With the penalty on, the configuration
/// refuses another one of that name.
const OVERLONG: &str = "overlong";

/// Adds the penalty on overlong completions to a reward. An episode that no reward applies to stays without one.
pub(crate) fn shape(rewards: &mut Rewards, penalty: f64) {
    if rewards.total().is_some() {
        let value = Some(penalty);
        rewards.components.push(RewardComponent { name: OVERLONG.to_owned(), weight: 1.0, value });
    }
}

/// What of a stage's rewards is the outcome.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OutcomeRule {
    /// One of the components says whether a task is solved.
    pub(crate) has_verifier: bool,
    /// The last component is the penalty on overlong completions.
    pub(crate) is_shaped: bool,
}

impl OutcomeRule {
    /// The verifier's verdict, 1 or 0, where there is a verifier; else the reward without the penalty on overlong
    /// completions. `None` where it does not apply.
    pub(crate) fn outcome(self, rewards: &Rewards) -> Option<f64> {
        if self.has_verifier {
            return rewards.solved.map(|solved| f64::from(u8::from(solved)));
        }
        let shaping = |c: &RewardComponent| self.is_shaped && c.name == OVERLONG;
        let unshaped = rewards.components.iter().filter(|c| !shaping(c)).cloned().collect();
        Rewards { components: unshaped, ..rewards.clone() }.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_that_does_not_apply_is_not_replaced_by_other_rewards() {
        let coin = RewardComponent { name: "random".into(), weight: 0.5, value: Some(1.0) };
        let mut rewards = Rewards { components: vec![coin], solved: None, parsed: None };
        shape(&mut rewards, -0.25);
        assert_eq!(rewards.total(), Some(0.25));
        let rule = |has_verifier, is_shaped| OutcomeRule { has_verifier, is_shaped };
        assert_eq!(rule(true, true).outcome(&rewards), None);
        assert_eq!(rule(false, true).outcome(&rewards), Some(0.5));
        assert_eq!(rule(false, false).outcome(&rewards), Some(0.25));
        rewards.solved = Some(false);
        assert_eq!(rule(true, true).outcome(&rewards), Some(0.0));
    }
}
