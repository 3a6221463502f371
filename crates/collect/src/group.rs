//! Groups of a stage that samples: all episodes of one task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rloom_algo::Overlong;
use rloom_core::{Episode, Purpose, Role, SampleKey, Task, Ticket};
use rloom_data::{Cursor, Dataset};
use rloom_engine::{RolloutEngine, SamplingSettings};
use rloom_store::journal::PartialEpisode;

use crate::concurrency::join_all;
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
    /// Samples that are generated and scored.
    pub done: Vec<u32>,
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
    /// Penalty on overlong completions.
    pub overlong: Option<Overlong>,
    /// Maximum number of policy tokens of an episode.
    pub completion_limit: u64,
    /// Sampling settings.
    pub sampling: SamplingSettings,
    /// Gives requests of older groups priority; otherwise requests are served in order of arrival.
    pub oldest_first: bool,
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

impl<E: RolloutEngine> GroupRunner<E> {
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

    /// Index in the dataset of a ticket's task.
    pub fn task_index(&self, ticket: Ticket) -> u64 {
        self.cursor.at(ticket.0).index
    }

    /// Returns the task of a ticket.
    pub fn task(&self, ticket: Ticket) -> Result<Task, GroupFailure> {
        let index = self.task_index(ticket);
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
        let GroupSettings { group_size, sampling, .. } = &self.settings;
        let greedy = SamplingSettings { temperature: 0.0, ..sampling.clone() };
        let missing = (0..self.episodes_per_group()).filter(|sample| !progress.done.contains(sample));
        let pending: Vec<_> = missing
            .map(|sample| {
                let sampling = if sample < *group_size { sampling } else { &greedy };
                let from = progress.partials.remove(&sample);
                Box::pin(self.sample(SampleKey { ticket, sample, segment: 0 }, task, sampling, from, report))
            })
            .collect();
        let mut complete = true;
        for done in join_all(pending, usize::MAX).await {
            complete &= done.map_err(|error| GroupFailure::new(task.index, &error))?;
        }
        Ok(complete)
    }

    /// Runs one sample of a group. Returns false if the run stops before it is complete.
    async fn sample(
        &self,
        key: SampleKey,
        task: &Task,
        sampling: &SamplingSettings,
        from: Option<PartialEpisode>,
        report: &(dyn Fn(GroupUpdate) + Sync),
    ) -> Result<bool, CollectError> {
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
        let mut scored = match self.episodes.run(request, from, &on_interrupt, &self.counters).await? {
            EpisodeOutcome::Scored(scored) => scored,
            EpisodeOutcome::Stopped(partial) => {
                if !partial.turns.is_empty() {
                    on_interrupt(partial);
                }
                return Ok(false);
            }
        };
        if let Some(overlong) = self.settings.overlong {
            let tokens = scored.trajectory.policy_tokens() as u64;
            add_overlong_penalty(
                &mut scored.rewards,
                overlong.penalty(tokens, self.settings.completion_limit),
            );
        }
        let episode = Episode {
            role: if sample < self.settings.group_size { Role::Train } else { Role::Baseline },
            segments: vec![scored.trajectory],
            rewards: scored.rewards,
        };
        report(GroupUpdate::Episode { sample, episode, reward_time: scored.reward_time });
        Ok(true)
    }
}
