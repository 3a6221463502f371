//! `[domains]`: quotas, filters and curriculum by domain.

use std::collections::BTreeMap;

use rloom_algo::DifficultyFilter;
use rloom_sched::CurriculumSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[domains]`: treatment of the tasks by their domain.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DomainSettings {
    /// Weights of all domains of the data, such as `{ math = 2, code = 1 }`: each has its share of the trained groups,
    /// exactly over time; a group that is replaced is replaced by one of its domain. Default: no quotas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: BTreeMap<String, f64>,
    /// Filters of groups by their difficulty, such as `{ math = { mean = [0.1, 0.9] }, code = { std = 0.05 } }`. Other
    /// domains have none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub filters: BTreeMap<String, DifficultyFilter>,
    /// With `filters`: batches' worth of groups that may be drawn for one batch, at least 1. Default: 10, or
    /// `algorithm.filter.max_draws` if that is larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_draws: Option<u32>,
    /// With `quotas`: lets them follow the measured success rates. An empty table has the defaults. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<CurriculumSettings>,
}

/// Default of `max_draws`.
const MAX_DRAWS: u32 = 10;

impl DomainSettings {
    /// True if no setting has an effect.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True if a filter can replace a group.
    pub fn replaces_groups(&self) -> bool {
        self.filters.values().any(DifficultyFilter::replaces_groups)
    }

    /// Batches' worth of groups that may be drawn for one batch because of the filters; 0 without.
    pub fn draws(&self) -> u32 {
        if self.replaces_groups() { self.max_draws.unwrap_or(MAX_DRAWS) } else { 0 }
    }

    /// Names of the domains with quotas, in order.
    pub fn names(&self) -> Vec<String> {
        self.quotas.keys().cloned().collect()
    }

    /// Weights of the domains with quotas, in the order of their names.
    pub fn weights(&self) -> Vec<f64> {
        self.quotas.values().copied().collect()
    }
}
