use std::collections::{BTreeMap, BTreeSet};

use super::EpisodeRewards;
use super::moments::RunningMoments;
use super::view::{GroupView, Raw};

/// The part of one agent in an episode of several.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentPart<'a> {
    /// Name of the agent.
    pub name: &'a str,
    /// Range of its policy tokens within the episode: start and end.
    pub tokens: (usize, usize),
    /// Reward of its own; `None` if it shares that of the episode.
    pub reward: Option<f64>,
    /// Mean reward of its turn in combination with turns of other episodes of the group
    /// ([`Recombination`](crate::Recombination)).
    pub recombined: Option<f64>,
    /// Its turns in order.
    pub turns: Vec<AgentTurn>,
}

/// One turn of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AgentTurn {
    /// Range of its policy tokens within the episode: start and end.
    pub tokens: (usize, usize),
    /// Reward of the turn, if it has one.
    pub reward: Option<f64>,
    /// Round of the episode in which it was taken, if that is known: turns of one round do not depend on each other.
    pub round: Option<u32>,
}

/// The agents of an episode; its only agent without a name if it has one alone.
pub(super) fn parts<'a>(e: &EpisodeRewards<'a>) -> Vec<AgentPart<'a>> {
    if !e.agents.is_empty() {
        return e.agents.to_vec();
    }
    let tokens = (0, e.tokens);
    let turn =
        |&(tokens, reward): &((usize, usize), f64)| AgentTurn { tokens, reward: Some(reward), round: None };
    let steps: Vec<((usize, usize), f64)> = e.steps.iter().map(|step| (step.tokens, step.reward)).collect();
    let turns = if steps.is_empty() {
        vec![AgentTurn { tokens, ..AgentTurn::default() }]
    } else {
        steps.iter().map(turn).collect()
    };
    vec![AgentPart { tokens, turns, ..AgentPart::default() }]
}

/// The rounds of an episode in which an agent has written something, in order.
pub(super) fn rounds(e: &EpisodeRewards<'_>) -> Vec<u32> {
    let turns = e.agents.iter().flat_map(|agent| &agent.turns);
    let written = turns.filter(|turn| turn.tokens.1 > turn.tokens.0).filter_map(|turn| turn.round);
    written.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Values of a group by a key, such as the agent.
pub(super) struct Compared<K>(BTreeMap<K, RunningMoments>);

impl<K: Ord> Compared<K> {
    pub(super) fn of(values: impl IntoIterator<Item = (K, f64)>) -> Self {
        let mut by_key: BTreeMap<K, Vec<f64>> = BTreeMap::new();
        for (key, value) in values {
            by_key.entry(key).or_default().push(value);
        }
        let moments = by_key.into_iter().map(|(key, values)| (key, RunningMoments::of(values.into_iter())));
        Self(moments.collect())
    }

    /// (value − mean)/(std + ε) among the values with the same key; without ε the mean is subtracted alone. 0 if they are
    /// equal, or if there is no other.
    pub(super) fn advantage(&self, key: &K, value: f64, std_epsilon: Option<f64>) -> f64 {
        match self.0.get(key) {
            Some(of) if !of.no_spread() => {
                (value - of.mean) / std_epsilon.map_or(1.0, |epsilon| of.std() + epsilon)
            }
            _ => 0.0,
        }
    }
}

/// Advantages of the members of a group from those of token ranges.
pub(super) fn by_range(
    group: &GroupView<'_>,
    mut ranges: impl FnMut(&EpisodeRewards<'_>, f64) -> Vec<((usize, usize), f64)>,
) -> Vec<Raw> {
    group.each(|_, e, reward| {
        let mut advantage = vec![0.0; e.tokens];
        for ((start, end), of_range) in ranges(e, reward) {
            advantage[start..end].fill(of_range);
        }
        Raw::PerToken(advantage)
    })
}
