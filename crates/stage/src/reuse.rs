//! Groups of earlier batches that later ones may reuse.

use std::collections::BTreeMap;

use rloom_collect::staleness_metrics;
use rloom_core::{Group, PolicyVersion, Ticket, metric};
use rloom_engine::{RolloutEngine, TrainEngine};
use rloom_sched::ReusedGroup;
use rloom_store::journal::Record;
use rloom_telemetry::Metrics;

use crate::Stage;

/// A trained group.
#[derive(Debug)]
struct TrainedGroup {
    group: Group,
    /// The batch that it was part of.
    batch: u64,
}

/// The content of the groups that the scheduler may draw again. Those of the batch in flight are with the trainer.
#[derive(Debug, Default)]
pub(crate) struct ReusableGroups(BTreeMap<Ticket, TrainedGroup>);

impl ReusableGroups {
    /// Adds a group that was part of `batch`.
    pub(crate) fn insert(&mut self, group: Group, batch: u64) {
        self.0.insert(group.ticket, TrainedGroup { group, batch });
    }

    /// True if the content of the group is available.
    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.0.contains_key(&ticket)
    }

    /// The groups that a batch reuses, as far as they are available.
    pub(crate) fn of_batch(&self, reused: &[ReusedGroup]) -> Vec<Group> {
        let group = |reused: &ReusedGroup| Some(self.0.get(&reused.ticket)?.group.clone());
        reused.iter().filter_map(group).collect()
    }

    /// Keeps only the groups for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(Ticket) -> bool) {
        self.0.retain(|ticket, _| keep(*ticket));
    }

    /// The groups as records that a journal segment starts with.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        self.0.values().flat_map(|TrainedGroup { group, batch }| {
            let episodes = (0..).zip(&group.episodes).map(|(sample, episode)| Record::Episode {
                ticket: group.ticket,
                sample,
                episode: episode.clone(),
            });
            let (ticket, task) = (group.ticket, group.task.clone());
            episodes.chain([Record::Reusable { ticket, task, batch: *batch }])
        })
    }
}

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Keeps the new groups of a trained batch, if later batches may reuse any.
    pub(crate) fn keep_trained(&mut self, groups: Vec<Group>, batch: u64) {
        if self.context.schedule.reuse.is_none() {
            return;
        }
        for group in groups.into_iter().filter(|group| self.scheduler.is_reusable(group.ticket)) {
            self.groups.reusable_mut().insert(group, batch);
        }
    }

    /// Forgets the groups that no later batch may reuse.
    pub(crate) fn forget_used(&mut self) {
        let scheduler = &self.scheduler;
        self.groups.reusable_mut().retain(|ticket| scheduler.is_reusable(ticket));
    }

    /// Share and age of the reused groups of a batch that is trained from `version`, and the age of all its tokens.
    pub(crate) fn reuse_metrics(&self, new: &[Group], reused: &[Group], version: PolicyVersion) -> Metrics {
        if self.context.schedule.reuse.is_none() {
            return Metrics::new();
        }
        let share = reused.len() as f64 / (new.len() + reused.len()) as f64;
        let mut metrics = Metrics::from([(metric::REUSE_SHARE.to_owned(), share)]);
        if reused.is_empty() {
            return metrics;
        }
        let age = |group: &Group| {
            let oldest = self.context.policies.oldest_version(group).unwrap_or(version);
            version.0.saturating_sub(oldest.0)
        };
        let ages: Vec<u64> = reused.iter().map(age).collect();
        let mean = ages.iter().sum::<u64>() as f64 / ages.len() as f64;
        metrics.insert(metric::REUSE_AGE_MEAN.into(), mean);
        metrics.insert(metric::REUSE_AGE_MAX.into(), ages.into_iter().max().unwrap_or(0) as f64);
        let all = || new.iter().chain(reused);
        metrics.extend(staleness_metrics(all(), version, &self.context.policies.ids()));
        metrics
    }
}
