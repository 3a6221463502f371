use super::EpisodeRewards;
use super::agents::{by_range, parts, rounds};
use super::estimator::{Batch, Estimate, Reads};
use super::normalize::check_gamma;
use super::returns::accumulate;
use super::view::Raw;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Generalised advantage estimation over the rounds of an episode of several agents: δ_k = γV_{k+1} − V_k, and R − V_k in the
    /// last round, A_k = δ_k + γλA_{k+1}. V_k is the value that a critic gives to all that the agents have read and written
    /// before round k, R the reward that they share. All turns of a round have the same advantage.
    JointGae {
        /// Discount per round.
        gamma: f64 = 1.0,
        /// λ: 1 for Monte Carlo returns, 0 for one-step differences.
        lambda: f64 = 1.0,
    }
}

impl JointGae {
    /// Advantage of each round.
    fn advantages(self, e: &EpisodeRewards<'_>, reward: f64) -> Vec<f64> {
        let mut deltas = vec![0.0; e.round_values.len()];
        // The reward follows the last round.
        let mut next = None;
        for (delta, &value) in deltas.iter_mut().zip(e.round_values).rev() {
            let value = f64::from(value);
            *delta = next.map_or(reward, |next: f64| self.gamma * next) - value;
            next = Some(value);
        }
        accumulate(&mut deltas, self.gamma * self.lambda);
        deltas
    }

    /// Targets of the values of each round: A + V, rounded once; the values themselves for an episode without a reward.
    pub(super) fn returns(self, e: &EpisodeRewards<'_>, reward: Option<f64>) -> Vec<f32> {
        let Some(reward) = reward else { return e.round_values.to_vec() };
        let advantages = self.advantages(e, reward).into_iter();
        advantages.zip(e.round_values).map(|(a, &v)| (a + f64::from(v)) as f32).collect()
    }
}

impl Estimate for JointGae {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)?;
        let fits = (0.0..=1.0).contains(&self.lambda);
        check("lambda", self.lambda, fits, "between 0 and 1", "0.95 is usual")
    }

    fn needs_group(&self) -> bool {
        false
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { round_values: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| {
            by_range(group, |e, reward| {
                let (rounds, advantages) = (rounds(e), self.advantages(e, reward));
                let turns = parts(e).into_iter().flat_map(|part| part.turns);
                let of_turn = |turn: super::AgentTurn| {
                    let place = rounds.iter().position(|round| Some(*round) == turn.round)?;
                    Some((turn.tokens, *advantages.get(place)?))
                };
                turns.filter_map(of_turn).collect()
            })
        })
    }
}
