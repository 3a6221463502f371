//! Rewards of single turns.

use std::collections::{BTreeMap, VecDeque};

use rloom_core::{Author, Rewards, Span, StepReward, Trajectory};
use rloom_env::{AgentSpec, JudgedTurn};

/// Turns that are judged one by one, with the segment of each.
pub(crate) fn segments_of<'a>(
    turns: &[JudgedTurn],
    agents: &[AgentSpec],
    segments: &'a [Trajectory],
) -> Vec<&'a [Trajectory]> {
    let mut taken = vec![0; agents.len()];
    let of_turn = |turn: &JudgedTurn| {
        let number = taken.get_mut(turn.agent)?;
        *number += 1;
        let name = agents.get(turn.agent).map(|agent| agent.name.as_str());
        let own = segments.iter().enumerate().filter(|(_, segment)| segment.agent.as_deref() == name);
        let mut places = own.flat_map(|(place, segment)| segment.policy_ranges().map(move |_| place));
        let place = places.nth(*number - 1)?;
        segments.get(place..=place)
    };
    turns.iter().map(of_turn).map(Option::unwrap_or_default).collect()
}

/// Writes the rewards of turns as their step rewards, and that of the last turn of each agent as the agent's. If a turn could not
/// be judged, the episode has no reward either; if no component applies to a turn, turns have no rewards.
pub(crate) fn credit(
    turns: &[JudgedTurn],
    judged: &[Rewards],
    agents: &[AgentSpec],
    segments: &mut [Trajectory],
    rewards: &mut Rewards,
) {
    if let Some(failed) = judged.iter().find(|rewards| rewards.failure().is_some()) {
        *rewards = failed.clone();
        return;
    }
    let Some(values) = judged.iter().map(Rewards::total).collect::<Option<Vec<f64>>>() else { return };
    let mut of_agent: BTreeMap<&str, VecDeque<f64>> = BTreeMap::new();
    for (turn, value) in turns.iter().zip(values) {
        if let Some(agent) = agents.get(turn.agent) {
            rewards.agents.insert(agent.name.clone(), value);
            of_agent.entry(&agent.name).or_default().push_back(value);
        }
    }
    for segment in segments {
        let Some(own) = segment.agent.as_deref().and_then(|name| of_agent.get_mut(name)) else { continue };
        let is_turn = |span: &&mut Span| span.author == Author::Policy;
        for span in segment.spans.iter_mut().filter(is_turn) {
            span.step = own.pop_front().map(|reward| StepReward { reward, state: None });
        }
    }
}
