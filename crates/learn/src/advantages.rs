//! Advantages, outcomes and masks of a batch of groups.

use rloom_algo::{
    AdvantageSpec, Advantages, AgentPart, AgentTurn, AlgoError, AlgorithmState, EpisodeRewards, Filters,
    GroupRewards, MaskReason, StepReward, advantages_of_roles,
};
use rloom_collect::OutcomeRule;
use rloom_core::{Author, Episode, Group, Role};

use crate::{BatchScores, GivenAdvantages};

/// Owned inputs of the advantage of an episode.
#[derive(Debug, Default)]
struct EpisodeNumbers<'a> {
    old: Vec<f32>,
    reference: Vec<f32>,
    values: Vec<f32>,
    last_value: Option<f32>,
    components: Vec<(f64, Option<f64>)>,
    round_values: Vec<f32>,
    steps: Vec<StepReward<'a>>,
    prm: Vec<f32>,
    prm_reference: Vec<f32>,
    given: Vec<f64>,
    agents: Vec<AgentPart<'a>>,
}

/// Computes the advantages of a batch.
pub(crate) fn batch_advantages(
    spec: &AdvantageSpec,
    state: &AlgorithmState,
    groups: &[Group],
    known: &BatchScores,
    given: Option<&GivenAdvantages>,
    step_reward_weight: f64,
) -> Result<Advantages, AlgoError> {
    // Trajectories are indexed as in `rows::members`: baselines have no scores.
    let mut place = 0;
    let mut round_values = known.round_values.iter();
    let numbers: Vec<Vec<EpisodeNumbers<'_>>> = groups
        .iter()
        .enumerate()
        .map(|(g, group)| {
            let mut of_group = Vec::with_capacity(group.episodes.len());
            for (e, episode) in group.episodes.iter().enumerate() {
                let given = given.and_then(|given| given.get(g)?.get(e)).cloned();
                let trained = episode.role == Role::Train;
                let places = place..place + if trained { episode.segments.len() } else { 0 };
                place = places.end;
                let round_values = if trained { round_values.next() } else { None };
                of_group.push(EpisodeNumbers {
                    round_values: round_values.cloned().unwrap_or_default(),
                    steps: steps_of(episode, step_reward_weight),
                    given: given.unwrap_or_default(),
                    agents: agents_of(episode),
                    ..numbers_of(episode, known, places)
                });
            }
            of_group
        })
        .collect();
    let rewards: Vec<GroupRewards<'_>> = groups
        .iter()
        .zip(&numbers)
        .map(|(group, numbers)| GroupRewards {
            episodes: group.episodes.iter().zip(numbers).map(|(e, n)| rewards_of(e, n)).collect(),
        })
        .collect();
    advantages_of_roles(spec, &state.rewards, &state.roles, &rewards)
}

fn numbers_of<'a>(
    episode: &'a Episode,
    known: &BatchScores,
    places: std::ops::Range<usize>,
) -> EpisodeNumbers<'a> {
    let joined = |all: &[Vec<f32>]| -> Vec<f32> {
        all.get(places.clone()).into_iter().flatten().flatten().copied().collect()
    };
    let old = if known.old.is_empty() {
        episode.segments.iter().flat_map(|s| s.logprobs.iter().copied()).collect()
    } else {
        joined(&known.old)
    };
    EpisodeNumbers {
        old,
        reference: joined(&known.reference),
        values: joined(&known.values),
        last_value: known
            .last_values
            .get(places.end.wrapping_sub(1))
            .copied()
            .filter(|_| episode.is_truncated()),
        round_values: Vec::new(),
        components: episode.rewards.components.iter().map(|c| (c.weight, c.value())).collect(),
        steps: Vec::new(),
        given: Vec::new(),
        agents: Vec::new(),
        prm: joined(&known.prm),
        prm_reference: joined(&known.prm_reference),
    }
}

fn rewards_of<'a>(episode: &Episode, numbers: &'a EpisodeNumbers<'a>) -> EpisodeRewards<'a> {
    EpisodeRewards {
        role: episode.role,
        reward: episode.rewards.total(),
        tokens: episode.policy_tokens(),
        old_logprob: &numbers.old,
        reference_logprob: &numbers.reference,
        components: &numbers.components,
        values: &numbers.values,
        last_value: numbers.last_value,
        round_values: &numbers.round_values,
        steps: &numbers.steps,
        prm_logprob: &numbers.prm,
        prm_reference_logprob: &numbers.prm_reference,
        given: &numbers.given,
        agents: &numbers.agents,
    }
}

/// Returns the turns that the environment rewarded: token range within the episode, and reward weighted as in the
/// episode's reward.
fn steps_of(episode: &Episode, weight: f64) -> Vec<StepReward<'_>> {
    let mut steps = Vec::new();
    let mut start = 0;
    for span in episode.segments.iter().flat_map(|s| &s.spans).filter(|s| s.author == Author::Policy) {
        let end = start + span.range.len();
        if let Some(step) = &span.step {
            steps.push(StepReward {
                tokens: (start, end),
                reward: weight * step.reward,
                state: step.state.as_deref(),
            });
        }
        start = end;
    }
    steps
}

/// Returns the agents of an episode of several; empty for one of a single agent.
fn agents_of(episode: &Episode) -> Vec<AgentPart<'_>> {
    let mut agents: Vec<AgentPart<'_>> = Vec::new();
    let mut start = 0;
    for segment in &episode.segments {
        let (Some(name), end) = (segment.agent.as_deref(), start + segment.policy_tokens()) else {
            return Vec::new();
        };
        let reward = episode.rewards.agents.get(name).copied();
        let recombined = episode.rewards.recombined.get(name).copied();
        if agents.last().is_none_or(|agent| agent.name != name) {
            agents.push(AgentPart { name, tokens: (start, end), reward, recombined, turns: Vec::new() });
        }
        if let Some(agent) = agents.last_mut() {
            agent.tokens.1 = end;
            for span in segment.spans.iter().filter(|span| span.author == Author::Policy) {
                let tokens = (start, start + span.range.len());
                let reward = span.step.as_ref().map(|step| step.reward);
                agent.turns.push(AgentTurn { tokens, reward, round: span.round });
                start = tokens.1;
            }
        }
    }
    agents
}

/// Returns the outcome, 0 to 1, of the episode of each trained trajectory.
pub(crate) fn outcomes(rule: &OutcomeRule, groups: &[Group]) -> Vec<Option<f64>> {
    let mut outcomes = Vec::new();
    for group in groups {
        for e in group.episodes.iter().filter(|e| e.role == Role::Train) {
            let outcome = rule.outcome(&group.task.domain, &e.rewards).map(|o| o.clamp(0.0, 1.0));
            outcomes.extend(std::iter::repeat_n(outcome, e.segments.len()));
        }
    }
    outcomes
}

/// Returns the reason for excluding each trajectory from training; `None` if it is not excluded.
pub(crate) fn masks(filters: &Filters, groups: &[Group]) -> Vec<Option<MaskReason>> {
    let mut out = Vec::new();
    for group in groups {
        let episodes = group.episodes.iter();
        let rewards = episodes.clone().map(|e| EpisodeRewards {
            role: e.role,
            ..EpisodeRewards::new(e.rewards.total(), e.policy_tokens())
        });
        let truncated: Vec<bool> = episodes.clone().map(Episode::is_truncated).collect();
        let reasons = filters.masks(&GroupRewards { episodes: rewards.collect() }, &truncated);
        for (episode, reason) in episodes.zip(reasons).filter(|(e, _)| e.role == Role::Train) {
            out.extend(std::iter::repeat_n(reason, episode.segments.len()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rloom_core::{Rewards, SampleKey, Span, StepReward, StopReason, Trajectory};

    use super::*;

    /// Steps index tokens within the episode, and their rewards carry the weight of the reward component.
    #[test]
    fn steps_of_a_multi_turn_episode() {
        let judged = |range, reward, state: &str| Span {
            step: Some(StepReward { reward, state: Some(state.into()) }),
            ..Span::new(Author::Policy, range)
        };
        let spans = vec![
            Span::new(Author::Prompt, 0..2),
            judged(2..4, 0.5, "a"),
            Span::new(Author::Environment, 4..5),
            judged(5..6, 1.0, "b"),
        ];
        let segment = Trajectory {
            key: SampleKey::default(),
            agent: None,
            tokens: vec![1; 6],
            spans,
            logprobs: vec![-1.0; 3],
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        };
        let episode = Episode { role: Role::Train, segments: vec![segment], rewards: Rewards::default() };
        assert!(agents_of(&episode).is_empty());
        let found: Vec<_> = steps_of(&episode, -2.0).iter().map(|s| (s.tokens, s.reward, s.state)).collect();
        assert_eq!(found, [((0, 2), -1.0, Some("a")), ((2, 3), -2.0, Some("b"))]);
    }

    /// Turns are ranges of the episode's tokens, agent by agent, also over several segments.
    #[test]
    fn agents_have_their_tokens_turns_and_rewards() {
        let segment = |agent: &str, turns: &[usize]| {
            let mut spans = vec![Span::new(Author::Prompt, 0..1)];
            let mut end = 1;
            for &turn in turns {
                spans.push(Span::new(Author::Policy, end..end + turn));
                end += turn;
            }
            Trajectory {
                key: SampleKey::default(),
                agent: Some(agent.into()),
                tokens: vec![1; end],
                spans,
                logprobs: vec![-1.0; end - 1],
                versions: Vec::new(),
                stop: StopReason::StopToken,
                attachments: Vec::new(),
            }
        };
        let mut segments = vec![segment("a", &[2, 1]), segment("a", &[1]), segment("b", &[3])];
        segments[1].spans[1].step = Some(StepReward { reward: 0.5, state: None });
        let rewards = Rewards {
            agents: [("b".to_owned(), -1.0)].into(),
            recombined: [("b".to_owned(), 0.25)].into(),
            ..Rewards::default()
        };
        let episode = Episode { role: Role::Train, segments, rewards };
        let turn = |start, end, reward| AgentTurn { tokens: (start, end), reward, round: None };
        let expected = [
            AgentPart {
                name: "a",
                tokens: (0, 4),
                turns: vec![turn(0, 2, None), turn(2, 3, None), turn(3, 4, Some(0.5))],
                ..AgentPart::default()
            },
            AgentPart {
                name: "b",
                tokens: (4, 7),
                reward: Some(-1.0),
                recombined: Some(0.25),
                turns: vec![turn(4, 7, None)],
            },
        ];
        assert_eq!(agents_of(&episode), expected);
    }
}
