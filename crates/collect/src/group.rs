//! Groups of a stage that samples: all episodes of one task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rloom_algo::{Overlong, Recombination};
use rloom_core::{Draw, Episode, Purpose, Rewards, Role, SampleKey, Task, Ticket};
use rloom_data::{Cursor, Dataset};
use rloom_engine::{RolloutEngine, SamplingSettings};
use rloom_store::journal::PartialEpisode;

use crate::concurrency::join_all;
use crate::demonstrations::SomeDemonstrations;
use crate::episode::{EpisodeCounters, EpisodeOutcome, EpisodeRequest, EpisodeRunner};
use crate::outcome::add_overlong_penalty;
use crate::{CollectError, GroupFailure};

/// Progress report of a group.
#[derive(Debug)]
pub enum GroupUpdate {
    /// An episode is generated and scored.
    Episode {
        /// Index in the group.
        sample: u32,
        /// The episode.
        episode: Episode,
        /// Duration of its reward.
        reward_time: Duration,
    },
    /// The components that judge whole groups have judged an episode, which replaces its earlier version.
    Judged {
        /// Index in the group.
        sample: u32,
        /// The episode with its complete rewards.
        episode: Episode,
        /// Duration of the judgement of the group, for its first episode.
        reward_time: Duration,
    },
    /// An episode was interrupted.
    Partial {
        /// Index in the group.
        sample: u32,
        /// The partial episode.
        partial: PartialEpisode,
    },
}

/// The part of a group that earlier attempts have generated.
#[derive(Debug, Default)]
pub struct GroupProgress {
    /// Episodes that are generated and scored, by sample. Their rewards may be pending.
    pub done: BTreeMap<u32, Episode>,
    /// Interrupted samples.
    pub partials: BTreeMap<u32, PartialEpisode>,
}

/// Sampling of the groups of a stage.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// Trained episodes per group.
    pub group_size: u32,
    /// Adds a greedy episode as a baseline, which is not trained on.
    pub has_baseline: bool,
    /// Combinations of turns from different episodes that are judged as well, once all episodes are generated.
    pub recombination: Option<Recombination>,
    /// Penalty on overlong completions.
    pub overlong: Option<Overlong>,
    /// Maximum number of policy tokens of an episode.
    pub completion_limit: u64,
    /// Sampling settings.
    pub sampling: SamplingSettings,
    /// Gives requests of older groups priority; otherwise requests are served in order of arrival.
    pub oldest_first: bool,
    /// Groups that are demonstrations instead of being sampled.
    pub demonstrations: Option<SomeDemonstrations>,
}

/// End of a sample's episode.
enum SampleEnd {
    /// Generated and scored; a part of its reward may need the whole group.
    Scored(u32, Box<Episode>),
    /// The run stops before it is complete.
    Stopped,
}

/// Generates and scores the groups of a stage.
#[derive(Debug)]
pub struct GroupRunner<E> {
    episodes: Arc<EpisodeRunner<E>>,
    dataset: Arc<Dataset>,
    cursor: Cursor,
    settings: GroupSettings,
    counters: EpisodeCounters,
}

impl<E: RolloutEngine + 'static> GroupRunner<E> {
    /// Creates a runner of the tasks in `dataset`, in the order of `cursor`.
    pub fn new(
        episodes: Arc<EpisodeRunner<E>>,
        dataset: Arc<Dataset>,
        cursor: Cursor,
        settings: GroupSettings,
    ) -> Self {
        Self { episodes, dataset, cursor, settings, counters: EpisodeCounters::default() }
    }

    /// Runs the episodes.
    pub fn episodes(&self) -> &EpisodeRunner<E> {
        &self.episodes
    }

    /// Counters of the episodes.
    pub fn counters(&self) -> &EpisodeCounters {
        &self.counters
    }

    /// Episodes per group, the baseline included.
    pub fn episodes_per_group(&self) -> u32 {
        self.settings.group_size + u32::from(self.settings.has_baseline)
    }

    /// Position in the dataset of a drawn task.
    pub fn task_index(&self, draw: Draw) -> u64 {
        self.cursor.drawn(draw).index
    }

    /// Returns a drawn task.
    pub fn task(&self, draw: Draw) -> Result<Task, GroupFailure> {
        let index = self.task_index(draw);
        self.dataset.get(index).map_err(|error| GroupFailure::new(index, &error.into()))
    }

    /// Generates and scores the missing episodes of a group, and calls `report` for each. Returns false if the run stops
    /// before the group is complete.
    pub async fn run(
        &self,
        ticket: Ticket,
        task: &Task,
        mut progress: GroupProgress,
        report: &(dyn Fn(GroupUpdate) + Sync),
    ) -> Result<bool, GroupFailure> {
        if let Some(some) = self.settings.demonstrations.as_ref().filter(|some| some.includes(ticket)) {
            let read = some.reader.episodes(ticket, task, self.dataset.rules(task.index)).await;
            let episodes = read.map_err(|error| GroupFailure::new(task.index, &error))?;
            for (sample, episode) in
                (0..).zip(episodes).filter(|(sample, _)| !progress.done.contains_key(sample))
            {
                report(GroupUpdate::Episode { sample, episode, reward_time: Duration::ZERO });
            }
            return Ok(true);
        }
        let GroupSettings { group_size, sampling, .. } = &self.settings;
        let greedy = SamplingSettings { temperature: 0.0, ..sampling.clone() };
        let missing = (0..self.episodes_per_group()).filter(|sample| !progress.done.contains_key(sample));
        let pending: Vec<_> = missing
            .map(|sample| {
                let sampling = if sample < *group_size { sampling } else { &greedy };
                let from = progress.partials.remove(&sample);
                Box::pin(self.sample(SampleKey { ticket, sample, segment: 0 }, task, sampling, from, report))
            })
            .collect();
        let mut complete = true;
        for ended in join_all(pending, usize::MAX).await {
            match ended.map_err(|error| GroupFailure::new(task.index, &error))? {
                SampleEnd::Scored(sample, episode) => {
                    progress.done.insert(sample, *episode);
                }
                SampleEnd::Stopped => complete = false,
            }
        }
        if complete && progress.done.values().any(|episode| episode.rewards.pending) {
            self.judge(task, &mut progress.done, report)
                .await
                .map_err(|error| GroupFailure::new(task.index, &error))?;
        }
        if complete {
            let rewards = progress.done.values().map(|episode| (task, &episode.rewards));
            self.episodes.check_dropped(rewards).map_err(|error| GroupFailure::new(task.index, &error))?;
        }
        Ok(complete)
    }

    /// Completes the rewards of a group whose episodes are all generated.
    async fn judge(
        &self,
        task: &Task,
        episodes: &mut BTreeMap<u32, Episode>,
        report: &(dyn Fn(GroupUpdate) + Sync),
    ) -> Result<(), CollectError> {
        let mut reward_time = Duration::ZERO;
        if self.episodes.scorer().judges_groups() {
            let scored = |episode: &Episode| (episode.segments.clone(), episode.rewards.clone());
            let mut group: Vec<_> = episodes.values().map(scored).collect();
            reward_time += self.episodes.judge_group(task, &mut group).await?;
            for (episode, (_, rewards)) in episodes.values_mut().zip(group) {
                episode.rewards = Rewards { pending: true, ..rewards };
            }
        }
        for episode in episodes.values_mut().filter(|episode| episode.rewards.pending) {
            episode.rewards.pending = false;
            let tokens = episode.policy_tokens() as u64;
            self.add_overlong(&mut episode.rewards, tokens);
        }
        if let Some(kind) = self.settings.recombination {
            let finish = |rewards: &mut Rewards, tokens| self.add_overlong(rewards, tokens);
            reward_time +=
                self.episodes.recombine(kind, task, episodes.values_mut().collect(), &finish).await?;
        }
        for (&sample, episode) in episodes {
            report(GroupUpdate::Judged { sample, episode: episode.clone(), reward_time });
            reward_time = Duration::ZERO;
        }
        Ok(())
    }

    fn add_overlong(&self, rewards: &mut Rewards, tokens: u64) {
        if let Some(overlong) = self.settings.overlong {
            let penalty = overlong.penalty(tokens, self.settings.completion_limit);
            add_overlong_penalty(rewards, penalty);
        }
    }

    /// Runs one sample of a group.
    async fn sample(
        &self,
        key: SampleKey,
        task: &Task,
        sampling: &SamplingSettings,
        from: Option<PartialEpisode>,
        report: &(dyn Fn(GroupUpdate) + Sync),
    ) -> Result<SampleEnd, CollectError> {
        let SampleKey { ticket, sample, .. } = key;
        let request = EpisodeRequest {
            task,
            key,
            purpose: Purpose::Rollout,
            group: Some(ticket.0),
            priority: if self.settings.oldest_first { ticket.0 } else { 0 },
            sampling,
        };
        let on_interrupt = |partial| report(GroupUpdate::Partial { sample, partial });
        let scored = match self.episodes.run(request, from, &on_interrupt, &self.counters).await? {
            EpisodeOutcome::Scored(scored) => scored,
            EpisodeOutcome::Stopped(partial) => {
                if !partial.turns.is_empty() {
                    on_interrupt(partial);
                }
                return Ok(SampleEnd::Stopped);
            }
        };
        let mut episode = Episode {
            role: if sample < self.settings.group_size { Role::Train } else { Role::Baseline },
            segments: scored.segments,
            rewards: scored.rewards,
        };
        episode.rewards.pending |= self.settings.recombination.is_some() && episode.role == Role::Train;
        if !episode.rewards.pending {
            let tokens = episode.policy_tokens() as u64;
            self.add_overlong(&mut episode.rewards, tokens);
        }
        let end = SampleEnd::Scored(sample, Box::new(episode.clone()));
        report(GroupUpdate::Episode { sample, episode, reward_time: scored.reward_time });
        Ok(end)
    }
}
