use super::EpisodeRewards;
use super::agents::{AgentPart, Compared, by_range, parts};
use super::estimator::{Batch, Estimate};
use super::normalize::{STD_EPSILON, check_std_epsilon};
use super::view::{GroupView, Raw};
use crate::settings::choices::choices;
use crate::settings::keys::{OutOfRange, check, settings};

choices! {
    /// Term by which `marti` shapes the reward of a turn.
    Shaping {
        /// R − Q.
        Margin = "margin",
        /// Q·R − (1 − Q)(1 − R).
        Quality = "quality",
    }
}

choices! {
    /// Turns whose mean reward is Q in `marti`.
    ShapingHistory {
        /// The earlier turns of all agents, as in a debate.
        All = "all",
        /// The agent's own earlier turns.
        Own = "own",
    }
}

settings! {
    /// Rewards of turns, shaped by those before them and normalised over the group's turns of the same agent and number: MARTI
    /// (github.com/TsinghuaC3I/MARTI). With Q the mean reward of earlier turns, R′ = R + α·(R − Q), or R + α·(Q·R −
    /// (1 − Q)(1 − R)); first turns have no Q and keep R. Then β times the agent's last reward is added. Turns without a
    /// reward have the episode's.
    Marti {
        /// Term of the shaping.
        shaping: Shaping = Shaping::Margin,
        /// Turns that Q is the mean of.
        history: ShapingHistory = ShapingHistory::All,
        /// α: weight of the shaping.
        alpha: f64 = 0.5,
        /// β: weight of the agent's last reward in each of its turns.
        beta: f64 = 0.0,
        /// Also divide by the standard deviation.
        divide_by_std: bool = true,
        /// Added to the standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
    }
}

/// Raw rewards of the turns of each agent.
fn rewards(parts: &[AgentPart<'_>], shared: f64) -> Vec<Vec<f64>> {
    let of_part = |part: &AgentPart<'_>| -> Vec<f64> {
        part.turns.iter().map(|turn| turn.reward.unwrap_or(shared)).collect()
    };
    parts.iter().map(of_part).collect()
}

impl Marti {
    /// Shaped reward of turn `turn` of agent `agent`.
    fn shaped(self, raw: &[Vec<f64>], agent: usize, turn: usize) -> f64 {
        let reward = raw[agent][turn];
        let seen = match self.history {
            ShapingHistory::All => raw,
            ShapingHistory::Own => &raw[agent..=agent],
        };
        let earlier = || seen.iter().flat_map(|own| own.iter().take(turn));
        let outcome = self.beta * raw[agent].last().copied().unwrap_or(0.0);
        let count = earlier().count();
        if turn == 0 || count == 0 {
            return reward + outcome;
        }
        let q = earlier().sum::<f64>() / count as f64;
        let term = match self.shaping {
            Shaping::Margin => reward - q,
            Shaping::Quality => q * reward - (1.0 - q) * (1.0 - reward),
        };
        reward + self.alpha * term + outcome
    }

    /// Shaped rewards of all turns: agent, number, tokens and reward.
    fn turns<'a>(self, e: &EpisodeRewards<'a>, shared: f64) -> Vec<(&'a str, usize, (usize, usize), f64)> {
        let parts = parts(e);
        let raw = rewards(&parts, shared);
        let mut turns = Vec::new();
        for (agent, part) in parts.iter().enumerate() {
            for (number, turn) in part.turns.iter().enumerate() {
                turns.push((part.name, number, turn.tokens, self.shaped(&raw, agent, number)));
            }
        }
        turns
    }

    fn group(self, group: &GroupView<'_>) -> Vec<Raw> {
        let all = group.members().flat_map(|(_, e, shared)| self.turns(e, shared));
        let compared = Compared::of(all.map(|(agent, number, _, reward)| ((agent, number), reward)));
        let epsilon = self.divide_by_std.then_some(self.std_epsilon);
        by_range(group, |e, shared| {
            let turns = self.turns(e, shared).into_iter();
            let advantage = |(agent, number, tokens, reward)| {
                (tokens, compared.advantage(&(agent, number), reward, epsilon))
            };
            turns.map(advantage).collect()
        })
    }
}

impl Estimate for Marti {
    fn check(&self) -> Result<(), OutOfRange> {
        check("alpha", self.alpha, self.alpha >= 0.0, "0 or more", "0.5 is usual")?;
        check("beta", self.beta, self.beta >= 0.0, "0 or more", "0.5 adds half of the last reward")?;
        check_std_epsilon(self.std_epsilon)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.divide_by_std { &[] } else { &["std_epsilon"] }
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
