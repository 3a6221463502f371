use rloom_core::OnUpdate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CutOrder, ReuseSettings, Stragglers};

/// `[schedule]`: interleaving of rollouts and training. The keys of the scheduler become
/// [`SchedulerSettings`](crate::SchedulerSettings); the driver uses the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// Maximum age of a trained group (η): the number of batches trained since the oldest policy version that
    /// generated any of its tokens. At 0 rollouts and training alternate; above 0 they overlap.
    pub max_staleness: u64,
    /// Samples group `t` with version `max(0, ⌊t/B⌋ − η)` from its first token to its last, so that a run is bitwise
    /// reproducible at any η. New weights then wait for the groups of older versions.
    pub pin_version: bool,
    /// Policy for in-flight completions when a new version is published, with `max_staleness` above 0. Default:
    /// `"recompute"`, or `"finish"` with `pin_version`.
    #[schemars(extend("default" = ()))]
    pub on_update: OnUpdate,
    /// Order in which ready groups form batches.
    pub cut_order: CutOrder,
    /// Groups that may run beyond the number that the batches need, so that a batch does not wait for the slowest; 0
    /// for none. Requires `cut_order = "completion"`.
    pub oversample: u64,
    /// Policy for groups that can no longer be part of a batch in time, with `cut_order = "completion"`. `"defer"` requires
    /// `max_staleness = 0` and `oversample` above 0, `"wait"` requires `max_staleness` above 0 and `oversample = 0`.
    pub stragglers: Stragglers,
    /// Order in which waiting completions start when not all can run at once.
    pub priority: Priority,
    /// Number of groups per batch that may fail to be generated or scored, times the `1 + max_staleness` batches in preparation
    /// at once. Another group replaces each of them; one more failure ends the run, which can be resumed.
    pub max_failures: u64,
    /// Experience replay: trains on groups of earlier batches again.
    pub reuse: Option<ReuseSettings>,
}

impl Default for ScheduleSettings {
    /// Rollouts and training alternate, and the first failure ends the run.
    fn default() -> Self {
        Self {
            max_staleness: 0,
            pin_version: false,
            on_update: OnUpdate::Finish,
            cut_order: CutOrder::Ticket,
            oversample: 0,
            stragglers: Stragglers::Drop,
            priority: Priority::Oldest,
            max_failures: 0,
            reuse: None,
        }
    }
}

impl ScheduleSettings {
    /// True if rollouts continue while a batch is trained.
    pub fn overlaps(&self) -> bool {
        self.max_staleness > 0
    }

    /// Largest age of a trained token, in versions.
    pub fn max_trained_age(&self) -> u64 {
        let reused = self.reuse.filter(|reuse| reuse.share > 0.0).map_or(0, |reuse| reuse.max_age);
        self.max_staleness.max(reused)
    }

    /// Default of `on_update`. Synchronous and pinned runs have no completions to update in flight; for others,
    /// recomputing keeps log-probabilities exact without draining the engine.
    pub fn default_on_update(max_staleness: u64, pin_version: bool) -> OnUpdate {
        if max_staleness == 0 || pin_version { OnUpdate::Finish } else { OnUpdate::Recompute }
    }
}

/// Order in which waiting completions start when not all can run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Lowest ticket first: the group that a batch waits for longest and that becomes stale first.
    #[default]
    Oldest,
    /// First come, first served. A sample that returns from its environment is queued last.
    Arrival,
}
