use super::agents::{Compared, by_range, parts};
use super::estimator::{Batch, Estimate, Reads};
use super::normalize::check_gamma;
use super::view::{GroupView, Raw};
use super::{EpisodeRewards, Recombination};
use crate::settings::choices::choices;
use crate::settings::keys::{OutOfRange, settings};

choices! {
    /// Combinations of the agents' turns that `magrpo` compares.
    Pairing {
        /// The turns of each episode.
        Aligned = "aligned",
        /// Every turn of an agent with every turn of each other agent, in the group's episodes.
        Cross = "cross",
    }
}

settings! {
    /// R_t − mean over the group at turn t, with the return R_t = γ^(T − t)·R of an episode of T turns from the reward R that
    /// the agents share: MAGRPO (arXiv 2508.04652). All agents' tokens of turn t have the same advantage; no standard deviation
    /// divides. With `pairing = "cross"` each agent takes one turn, and its return is the mean reward of the G^(N − 1)
    /// combinations of its turn with the turns of the others in the group's G episodes, N agents; its advantage is that return −
    /// the agent's mean over the group.
    Magrpo {
        /// Discount per turn.
        gamma: f64 = 0.9,
        /// Combinations of turns that are judged.
        pairing: Pairing = Pairing::Aligned,
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

    fn aligned(self, group: &GroupView<'_>) -> Vec<Raw> {
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

    fn cross(group: &GroupView<'_>) -> Vec<Raw> {
        let of_episode = |e: &EpisodeRewards<'_>, reward: f64| {
            let parts = parts(e).into_iter();
            let own =
                parts.map(|part| (part.tokens, part.name.to_owned(), part.recombined.unwrap_or(reward)));
            own.collect::<Vec<_>>()
        };
        let compared = Compared::of(group.members().flat_map(|(_, e, reward)| {
            of_episode(e, reward).into_iter().map(|(_, name, value)| (name, value))
        }));
        by_range(group, |e, reward| {
            let own = of_episode(e, reward).into_iter();
            own.map(|(tokens, name, value)| (tokens, compared.advantage(&name, value, None))).collect()
        })
    }
}

impl Estimate for Magrpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.pairing == Pairing::Cross { &["gamma"] } else { &[] }
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        let recombined = (self.pairing == Pairing::Cross).then_some(Recombination::Cross);
        Reads { recombined, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| match self.pairing {
            Pairing::Aligned => self.aligned(group),
            Pairing::Cross => Self::cross(group),
        })
    }
}
