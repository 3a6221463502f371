use super::estimator::{Batch, Estimate, Reads};
use super::moments::no_spread;
use super::view::{GroupView, Raw};
use super::{Recombination, agents::by_range, agents::parts};
use crate::settings::keys::settings;

settings! {
    /// R − R̄_k for each agent k: R is the reward of the episode and R̄_k the mean of the rewards that it would have with agent
    /// k's turn from each of the group's other episodes, the turns of the other agents as they are. An agent that changes
    /// nothing has an advantage of 0.
    Counterfactual {}
}

impl Counterfactual {
    fn group(group: &GroupView<'_>) -> Vec<Raw> {
        by_range(group, |e, reward| {
            let advantage = |replaced: f64| {
                if no_spread([reward, replaced].into_iter()) { 0.0 } else { reward - replaced }
            };
            let parts = parts(e).into_iter();
            parts.map(|part| (part.tokens, part.recombined.map_or(0.0, advantage))).collect()
        })
    }
}

impl Estimate for Counterfactual {
    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { recombined: Some(Recombination::Replaced), ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| Self::group(group))
    }
}
