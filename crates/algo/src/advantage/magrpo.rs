use super::EpisodeRewards;
use super::agents::{Compared, by_range, parts};
use super::estimator::{Batch, Estimate};
use super::normalize::check_gamma;
use super::view::{GroupView, Raw};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// R_t − mean over the group at turn t, with the return R_t = γ^(T − t)·R of an episode of T turns from the reward R that
    /// the agents share: MAGRPO (arXiv 2508.04652) with aligned generations, the g-th of each agent with the g-th of the
    /// others. All agents' tokens of turn t have the same advantage; no standard deviation divides.
    Magrpo {
        /// Discount per turn.
        gamma: f64 = 0.9,
    }
}

impl Magrpo {
    /// Return from each turn: its number, its tokens and the return.
    fn returns(self, e: &EpisodeRewards<'_>, reward: f64) -> Vec<(usize, (usize, usize), f64)> {
        let parts = parts(e);
        let last = parts.iter().map(|part| part.turns.len()).max().unwrap_or(0).saturating_sub(1);
        let numbered = parts.iter().flat_map(|part| part.turns.iter().enumerate());
        let discounted = |number: usize| self.gamma.powi((last - number) as i32) * reward;
        numbered.map(|(number, turn)| (number, turn.tokens, discounted(number))).collect()
    }

    fn group(self, group: &GroupView<'_>) -> Vec<Raw> {
        // An episode counts once at each turn, however many agents take it.
        let compared = Compared::of(group.members().flat_map(|(_, e, reward)| {
            let mut returns: Vec<(usize, f64)> =
                self.returns(e, reward).into_iter().map(|(number, _, value)| (number, value)).collect();
            returns.sort_by_key(|(number, _)| *number);
            returns.dedup_by_key(|(number, _)| *number);
            returns
        }));
        by_range(group, |e, reward| {
            let returns = self.returns(e, reward).into_iter();
            returns
                .map(|(number, tokens, value)| (tokens, compared.advantage(&number, value, None)))
                .collect()
        })
    }
}

impl Estimate for Magrpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| self.group(group))
    }
}
