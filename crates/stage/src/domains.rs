//! Domains of a stage: filters by difficulty, measured success, quotas that follow it.

use std::collections::BTreeMap;

use rloom_algo::{DifficultyFilter, FilterReason};
use rloom_core::{Episode, Group, Role, metric};
use rloom_engine::{RolloutEngine, TrainEngine};
use rloom_sched::{Attempts, CurriculumSettings, SchedError, SuccessRates};
use rloom_telemetry::Metrics;

use crate::Stage;

/// Treatment of the tasks of a stage by their domain.
#[derive(Debug, Clone, Default)]
pub struct StageDomains {
    /// True if the data has several domains: metrics are then reported for each.
    pub are_reported: bool,
    /// Filters of groups.
    pub filters: BTreeMap<String, DifficultyFilter>,
    /// Batches' worth of groups that may be drawn for one batch because of the filters.
    pub max_draws: u32,
    /// Names of the domains with quotas.
    pub names: Vec<String>,
    /// Their weights.
    pub weights: Vec<f64>,
    /// Lets the quotas follow the measured success.
    pub curriculum: Option<CurriculumSettings>,
}

impl StageDomains {
    /// The weights of the quotas after the measured success.
    pub fn weights_after(&self, success: Option<&SuccessRates>) -> Vec<f64> {
        match (&self.curriculum, success) {
            (Some(curriculum), Some(success)) => curriculum.weights(&self.weights, success),
            _ => self.weights.clone(),
        }
    }

    fn index(&self, domain: &str) -> Option<usize> {
        self.names.iter().position(|name| name == domain)
    }

    /// The reason of the domain's filter to replace a group with these raw rewards.
    pub(crate) fn verdict(&self, domain: &str, rewards: &[Option<f64>]) -> Option<FilterReason> {
        self.filters.get(domain)?.verdict(rewards)
    }
}

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Counts the attempts of a group that is trained on or filtered, for the curriculum.
    pub(crate) fn count_attempts(&mut self, group: &Group) {
        let domains = &self.context.domains;
        let Some(domain) = domains.curriculum.and_then(|_| domains.index(&group.task.domain)) else { return };
        let trained = group.episodes.iter().filter(|episode: &&Episode| episode.role == Role::Train);
        let verdicts = || trained.clone().filter_map(|episode| episode.rewards.solved);
        let attempts = Attempts {
            solved: verdicts().filter(|solved| *solved).count() as u64,
            judged: verdicts().count() as u64,
        };
        self.counters.success.get_or_insert_default().count(domain, attempts);
    }

    /// Ends the batch of these groups, for the curriculum.
    pub(crate) fn end_measured_batch(&mut self, groups: &[Group]) {
        let Some(curriculum) = self.context.domains.curriculum else { return };
        for group in groups {
            self.count_attempts(group);
        }
        self.counters.success.get_or_insert_default().end_batch(curriculum.window);
    }

    /// Has the quotas of the next groups follow the success measured so far.
    pub(crate) fn update_quotas(&mut self) -> Result<(), SchedError> {
        if self.context.domains.curriculum.is_none() {
            return Ok(());
        }
        let weights = self.context.domains.weights_after(self.counters.success.as_ref());
        self.scheduler.set_quotas(&weights)
    }

    /// Success rates and quotas of a curriculum.
    pub(crate) fn curriculum_metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        let domains = &self.context.domains;
        let Some(success) = self.counters.success.as_ref().filter(|_| domains.curriculum.is_some()) else {
            return metrics;
        };
        let weights = domains.weights_after(Some(success));
        let sum: f64 = weights.iter().sum();
        for (index, (name, weight)) in domains.names.iter().zip(&weights).enumerate() {
            metrics.insert(format!("{}{name}", metric::DOMAIN_QUOTA_PREFIX), weight / sum);
            if let Some(rate) = success.rate(index) {
                metrics.insert(format!("{}{name}", metric::DOMAIN_SUCCESS_PREFIX), rate);
            }
        }
        metrics
    }
}
