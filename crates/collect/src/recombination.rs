//! Rewards of turns in combination with turns of other episodes of the group, which are judged without being played.

use std::collections::{BTreeMap, BTreeSet};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use rloom_algo::Recombination;
use rloom_core::{Episode, Rewards, Role, Task, Trajectory};
use rloom_engine::RolloutEngine;

use crate::CollectError;
use crate::concurrency::try_join_all;
use crate::episode::EpisodeRunner;
use crate::transcript::policy_text;

/// For each agent the episode whose turn is taken.
type Combination = Vec<usize>;

/// The combinations that no episode has played.
fn unplayed(kind: Recombination, episodes: usize, agents: usize) -> BTreeSet<Combination> {
    match kind {
        Recombination::Cross => {
            let mut all: Vec<Combination> = vec![Vec::new()];
            for _ in 0..agents {
                let longer = |own: &Combination| {
                    let own = own.clone();
                    (0..episodes).map(move |episode| [&own[..], &[episode]].concat())
                };
                all = all.iter().flat_map(longer).collect();
            }
            all.into_iter().filter(|own| own.windows(2).any(|pair| pair[0] != pair[1])).collect()
        }
        Recombination::Replaced => {
            let pairs = (0..episodes).flat_map(|episode| (0..episodes).map(move |other| (episode, other)));
            let pairs = pairs.filter(|(episode, other)| episode != other);
            let of_pair =
                |(episode, other)| (0..agents).map(move |agent| replaced(agents, episode, agent, other));
            pairs.flat_map(of_pair).collect()
        }
    }
}

/// The turns of `episode`, with that of `agent` replaced by its turn in `other`.
fn replaced(agents: usize, episode: usize, agent: usize, other: usize) -> Combination {
    (0..agents).map(|a| if a == agent { other } else { episode }).collect()
}

/// Mean reward of the combinations that count for the turn of `agent` in `episode`; `None` if none has a reward.
fn mean(
    kind: Recombination,
    rewards: &BTreeMap<Combination, f64>,
    episodes: usize,
    agents: usize,
    (episode, agent): (usize, usize),
) -> Option<f64> {
    let values: Vec<f64> = match kind {
        Recombination::Cross => {
            rewards.iter().filter(|(own, _)| own[agent] == episode).map(|(_, reward)| *reward).collect()
        }
        Recombination::Replaced => {
            let others = (0..episodes).filter(|other| *other != episode);
            others
                .filter_map(|other| rewards.get(&replaced(agents, episode, agent, other)).copied())
                .collect()
        }
    };
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl<E: RolloutEngine + 'static> EpisodeRunner<E> {
    /// Judges the combinations of the turns of a group's trained episodes, and gives each agent of each episode the mean
    /// reward of its turn in them. `finish` completes the rewards of a combination with this number of tokens. An episode with
    /// a turn in a combination that cannot be judged has no reward. Returns the time of the judgements.
    pub(crate) async fn recombine(
        &self,
        kind: Recombination,
        task: &Task,
        episodes: Vec<&mut Episode>,
        finish: &(dyn Fn(&mut Rewards, u64) + Sync),
    ) -> Result<Duration, CollectError> {
        let has_reward = |e: &&mut Episode| e.role == Role::Train && e.rewards.total().is_some();
        let mut members: Vec<&mut Episode> = episodes.into_iter().filter(has_reward).collect();
        let agents = self.world().agents().len();
        let played = members.iter().enumerate();
        let mut rewards: BTreeMap<Combination, f64> =
            played.filter_map(|(place, e)| Some((vec![place; agents], e.rewards.total()?))).collect();
        let all = unplayed(kind, members.len(), agents);
        let judgements = all.iter().map(|combination| {
            let turns = combination.iter().enumerate();
            let segments: Vec<Trajectory> =
                turns.filter_map(|(agent, &e)| members[e].segments.get(agent)).cloned().collect();
            let tokens: usize = segments.iter().map(Trajectory::policy_tokens).sum();
            Box::pin(async move {
                let (mut rewards, time) = self.judge_combination(task, segments).await?;
                finish(&mut rewards, tokens as u64);
                Ok::<_, CollectError>((rewards, time))
            })
        });
        let judged = try_join_all(judgements).await?;
        let mut failed: BTreeMap<usize, Rewards> = BTreeMap::new();
        let mut time = Duration::ZERO;
        for (combination, (own, own_time)) in all.into_iter().zip(judged) {
            time += own_time;
            if own.failure().is_some() {
                failed.extend(combination.iter().map(|&place| (place, own.clone())));
            } else if let Some(total) = own.total() {
                rewards.insert(combination, total);
            }
        }
        let names: Vec<&str> = self.world().agents().iter().map(|agent| agent.name.as_str()).collect();
        let count = members.len();
        for (place, episode) in members.iter_mut().enumerate() {
            let Some(own) = episode.rewards.total() else { continue };
            let of_agent = |(agent, name): (usize, &&str)| {
                let mean = mean(kind, &rewards, count, agents, (place, agent)).unwrap_or(own);
                ((*name).to_owned(), mean)
            };
            episode.rewards.recombined = names.iter().enumerate().map(of_agent).collect();
            if let Some(Rewards { components, .. }) = failed.remove(&place) {
                episode.rewards =
                    Rewards { components, solved: None, parsed: None, ..episode.rewards.clone() };
            }
        }
        Ok(time)
    }

    /// Judges turns of different episodes, one of each agent, as one episode.
    async fn judge_combination(
        &self,
        task: &Task,
        segments: Vec<Trajectory>,
    ) -> Result<(Rewards, Duration), CollectError> {
        let settings = &self.settings;
        let (judge, world) = (self.judge_of(task), Arc::clone(&settings.world));
        let key = segments.first().map(|first| first.key).unwrap_or_default();
        let (rewards, time) = self
            .judging(key, move |current| {
                let texts = segments.iter().map(|segment| policy_text(&judge.tokenizer, from_ref(segment)));
                let answer = world.combined(&texts.collect::<Result<Vec<_>, _>>()?);
                let answer = answer.filter(|_| segments.len() == world.agents().len());
                let answer = answer
                    .ok_or_else(|| CollectError::NotCombined { environment: world.name().to_owned() })?;
                let texts = judge.texts(&segments, Some(&answer))?;
                Ok(judge.scorer.score(&judge.judged(&segments, &texts), current)?)
            })
            .await?;
        let rewards = match rewards {
            Ok(rewards) => rewards,
            Err(current) => settings.scorer.timed_out(&current, key, settings.reward_timeout)?,
        };
        Ok((rewards, time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewards of two agents with two turns each: 1 for equal turns.
    fn table() -> BTreeMap<Combination, f64> {
        [(vec![0, 0], 1.0), (vec![0, 1], 0.0), (vec![1, 0], 0.5), (vec![1, 1], 1.0)].into()
    }

    #[test]
    fn combinations_are_those_that_no_episode_has_played() {
        let cross = unplayed(Recombination::Cross, 2, 2);
        assert_eq!(cross, [vec![0, 1], vec![1, 0]].into());
        assert_eq!(unplayed(Recombination::Cross, 3, 3).len(), 27 - 3);
        // With two agents, replacing one turn of an episode is replacing the other turn of another.
        assert_eq!(unplayed(Recombination::Replaced, 2, 2), cross);
        let three = unplayed(Recombination::Replaced, 2, 3);
        assert_eq!(three.len(), 6);
        for kind in [Recombination::Cross, Recombination::Replaced] {
            for (episodes, agents) in [(2, 3), (3, 2), (4, 2), (3, 3)] {
                let found = (unplayed(kind, episodes, agents).len() + episodes) as u64;
                let count = kind.count(episodes as u64, agents as u32).unwrap();
                assert!(found == count || (agents == 2 && found < count), "{kind:?} {episodes} {agents}");
            }
        }
    }

    #[test]
    fn means_are_over_the_combinations_of_a_turn() {
        let of = |kind, episode, agent| mean(kind, &table(), 2, 2, (episode, agent));
        assert_eq!(of(Recombination::Cross, 0, 0), Some(0.5));
        assert_eq!(of(Recombination::Cross, 1, 0), Some(0.75));
        assert_eq!(of(Recombination::Cross, 0, 1), Some(0.75));
        assert_eq!(of(Recombination::Cross, 1, 1), Some(0.5));
        assert_eq!(of(Recombination::Replaced, 0, 0), Some(0.5));
        assert_eq!(of(Recombination::Replaced, 0, 1), Some(0.0));
        assert_eq!(of(Recombination::Replaced, 1, 0), Some(0.0));
        assert_eq!(mean(Recombination::Replaced, &table(), 1, 2, (0, 0)), None);
    }
}
