//! Leagues: earlier versions of a policy as opponents, drawn by how often they win.

use std::ops::Range;
use std::sync::Arc;

use rloom_collect::Opponents;
use rloom_core::{Episode, Group, PolicyId, Role, Trajectory, metric};
use rloom_engine::PublishedPolicy;
use rloom_store::checkpoint::{KeptVersion, LeagueState};
use rloom_telemetry::Metrics;

use crate::Publication;

/// Least weight of an opponent, so that one that always loses is met at times.
const LEAST_WEIGHT: f64 = 0.01;

/// A league of a stage.
#[derive(Debug)]
pub struct StageLeague {
    /// Name of its policy.
    pub name: String,
    /// Ids of its opponents.
    pub ids: Range<u32>,
    /// The policy whose versions it keeps.
    pub of: PolicyId,
    /// Steps between the versions that it keeps.
    pub every: u64,
    /// Draws opponents by their win rate; otherwise all with the same probability.
    pub by_win_rate: bool,
    /// Draws the opponents of groups.
    pub opponents: Arc<Opponents>,
    /// The versions that it keeps.
    pub state: LeagueState,
}

impl StageLeague {
    /// Its state with the opponents of the groups that have begun.
    pub(crate) fn saved(&self) -> LeagueState {
        LeagueState { drawn: self.opponents.drawn(), ..self.state.clone() }
    }

    /// Lets groups that begin from now on draw from the versions that are kept.
    pub(crate) fn offer(&self) {
        let weight = |kept: &KeptVersion| {
            if !self.by_win_rate {
                return 1.0;
            }
            // One episode won and one lost, before the first.
            let rate = (kept.lost + 1.0) / (kept.played as f64 + 2.0);
            (1.0 - rate).powi(2).max(LEAST_WEIGHT)
        };
        self.opponents.set_weights(self.state.kept.iter().map(weight).collect());
    }

    /// Counts the trained episodes of a batch.
    pub(crate) fn count(&mut self, groups: &[Group]) {
        for episode in groups.iter().flat_map(|group| &group.episodes) {
            let Some((place, lost)) = self.result(episode) else { continue };
            if let Some(kept) = self.state.kept.get_mut(place) {
                kept.played += 1;
                kept.lost += lost;
            }
        }
    }

    /// Place of the opponent of an episode, and 1 if it lost, 0 if it won, 0.5 after a draw. `None` if the version has been
    /// replaced.
    fn result(&self, episode: &Episode) -> Option<(usize, f64)> {
        let policy = |segment: &Trajectory| segment.versions.first().map(|span| span.policy);
        let is_opponent = |segment: &&Trajectory| policy(segment).is_some_and(|id| self.ids.contains(&id.0));
        let opponent = episode.segments.iter().find(is_opponent).filter(|_| episode.role == Role::Train)?;
        let span = opponent.versions.first()?;
        let place = (span.policy.0 - self.ids.start) as usize;
        self.state.kept.get(place).filter(|kept| kept.version == span.version)?;
        let reward =
            |segment: Option<&Trajectory>| episode.rewards.agents.get(segment?.agent.as_deref()?).copied();
        let learner = episode.segments.iter().find(|segment| policy(segment) == Some(self.of));
        let lost = match (reward(learner), reward(Some(opponent))) {
            (Some(own), Some(other)) if own == other => 0.5,
            (Some(own), Some(other)) => f64::from(own > other),
            // A shared reward is the success of the learner.
            _ => match episode.rewards.solved {
                Some(solved) => f64::from(solved),
                None => episode.rewards.total()?.clamp(0.0, 1.0),
            },
        };
        Some((place, lost))
    }

    /// Keeps published weights if it is time. Returns them as those of an opponent.
    pub(crate) fn keep(&mut self, weights: &Publication) -> Option<PublishedPolicy> {
        let version = weights.version();
        let is_kept = self.state.kept.iter().any(|kept| kept.version == version);
        if is_kept || !version.0.is_multiple_of(self.every) {
            return None;
        }
        let published = weights.of(self.of)?.clone();
        let place = (self.state.taken % self.ids.len() as u64) as usize;
        self.state.taken += 1;
        let kept = KeptVersion { version, played: 0, lost: 0.0 };
        match self.state.kept.get_mut(place) {
            Some(replaced) => *replaced = kept,
            None => self.state.kept.push(kept),
        }
        Some(PublishedPolicy { policy: PolicyId(self.ids.start + place as u32), ..published })
    }

    /// Versions and the share of episodes that the learner won against them.
    pub(crate) fn metrics(&self) -> Metrics {
        let named = |name: &str| format!("{}{}/{name}", metric::POLICY_PREFIX, self.name);
        let played: u64 = self.state.kept.iter().map(|kept| kept.played).sum();
        let lost: f64 = self.state.kept.iter().map(|kept| kept.lost).sum();
        let mut metrics = Metrics::from([(named("versions"), self.state.kept.len() as f64)]);
        if played > 0 {
            metrics.insert(named("win_rate"), 1.0 - lost / played as f64);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{
        PolicyVersion, PromptSource, Rewards, SampleKey, StopReason, Task, Ticket, VersionSpan,
    };
    use rloom_engine::{PublishedWeights, WeightFolder};

    use super::*;

    fn league(size: u32) -> StageLeague {
        StageLeague {
            name: "old".to_owned(),
            ids: 3..3 + size,
            of: PolicyId::MAIN,
            every: 2,
            by_win_rate: true,
            opponents: Arc::new(Opponents::new(1, 0, PolicyId(3))),
            state: LeagueState::default(),
        }
    }

    fn publication(version: u64) -> Publication {
        let weights = PublishedWeights::Folder(Arc::new(WeightFolder::kept("w")));
        let (policy, version) = (PolicyId::MAIN, PolicyVersion(version));
        PublishedPolicy { policy, version, digest: version.0, weights, probe: None }.into()
    }

    /// An episode of the main policy against `opponent` at `version`.
    fn episode(opponent: u32, version: u64, rewards: [f64; 2]) -> Episode {
        let segment = |agent: &str, policy, version| Trajectory {
            key: SampleKey::default(),
            agent: Some(agent.to_owned()),
            tokens: vec![1],
            spans: Vec::new(),
            logprobs: Vec::new(),
            versions: vec![VersionSpan {
                policy: PolicyId(policy),
                version: PolicyVersion(version),
                range: 0..1,
            }],
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        };
        let agents = [("x".to_owned(), rewards[0]), ("o".to_owned(), rewards[1])].into();
        Episode {
            role: Role::Train,
            segments: vec![segment("x", 0, 9), segment("o", opponent, version)],
            rewards: Rewards { agents, ..Rewards::default() },
        }
    }

    fn group(episodes: Vec<Episode>) -> Group {
        let task = Task {
            index: 0,
            prompt: PromptSource::Text(String::new()),
            answer: String::new(),
            demonstration: None,
            domain: String::new(),
            extra: Arc::default(),
        };
        Group { ticket: Ticket(0), task, episodes }
    }

    #[test]
    fn a_league_keeps_every_nth_version_in_turn() {
        let mut league = league(2);
        let kept: Vec<_> = (0..9)
            .filter_map(|version| league.keep(&publication(version)))
            .map(|weights| (weights.policy.0, weights.version.0, weights.digest))
            .collect();
        assert_eq!(kept, [(3, 0, 0), (4, 2, 2), (3, 4, 4), (4, 6, 6), (3, 8, 8)]);
        assert!(league.keep(&publication(8)).is_none(), "kept once");
        let versions: Vec<u64> = league.state.kept.iter().map(|kept| kept.version.0).collect();
        assert_eq!(versions, [8, 6]);
    }

    #[test]
    fn results_count_for_the_version_that_played() {
        let mut league = league(2);
        league.keep(&publication(0));
        league.keep(&publication(2));
        league.count(&[group(vec![
            episode(3, 0, [1.0, -1.0]),
            episode(3, 0, [0.0, 0.0]),
            episode(4, 2, [-1.0, 1.0]),
            // Of a version that was replaced.
            episode(4, 1, [1.0, -1.0]),
        ])]);
        let counts: Vec<(u64, f64)> = league.state.kept.iter().map(|kept| (kept.played, kept.lost)).collect();
        assert_eq!(counts, [(2, 1.5), (1, 0.0)]);
        assert_eq!(league.metrics()["policy/old/win_rate"], 0.5);
    }
}
