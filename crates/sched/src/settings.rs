use rloom_core::RandomKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Requirement, ReuseRule, ReuseSettings, SchedError, ScheduleSettings};

/// Order in which ready groups form batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CutOrder {
    /// By ticket: batches do not depend on which group finished first.
    #[default]
    Ticket,
    /// By completion: a slow group does not delay the others.
    Completion,
}

/// Policy for running groups that can no longer be trained in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stragglers {
    /// Ends them as stale.
    #[default]
    Drop,
    /// Has the batch wait for them: groups that no later batch could contain come first, the others by completion. No
    /// group is ever dropped for its age.
    Wait,
    /// Cancels them and starts them again later, in a batch of deferred groups only (tail batching).
    Defer,
}

/// Settings of the scheduler for one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// Groups per batch (`B`), at least 1.
    pub groups_per_batch: u64,
    /// Batches to train.
    pub batches: u64,
    /// Maximum age of a trained group, in versions (`η`).
    pub max_staleness: u64,
    /// Starts group `t` with version `max(0, ⌊t/B⌋ − η)` only, so that its samples do not depend on timing. Requires
    /// ticket order and no over-sampling; a group that is filtered or fails is then an error.
    pub pin_version: bool,
    /// Groups that may run beyond the number that the batches need.
    pub oversample: u64,
    /// Order in which ready groups form batches.
    pub cut_order: CutOrder,
    /// Policy for groups too slow for their batch. [`Stragglers::Defer`] requires `max_staleness` 0, completion order
    /// and over-sampling; [`Stragglers::Wait`] requires `max_staleness` above 0, completion order and no over-sampling.
    pub stragglers: Stragglers,
    /// Batches between evaluations, which also happen at the start and the end; 0 for none.
    pub evaluate_every: u64,
    /// Batches between checkpoints; 0 saves at the end only.
    pub checkpoint_every: u64,
    /// Reuse of trained groups; `None` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<ReuseRule>,
}

impl SchedulerSettings {
    /// Combines a stage's `[schedule]` with its batch size, length and intervals. `draws` is the key of the draws of reused
    /// groups.
    ///
    /// At `max_staleness = 0` every group already runs with the version of its batch, so pinning has no effect there, and
    /// replacements stay possible.
    pub fn new(
        schedule: &ScheduleSettings,
        groups_per_batch: u64,
        batches: u64,
        evaluate_every: u64,
        checkpoint_every: u64,
        draws: RandomKey,
    ) -> Self {
        let rule = |reuse: ReuseSettings| ReuseRule {
            groups: reuse.groups(groups_per_batch),
            max_age: reuse.max_age,
            max_uses: reuse.max_uses,
            draws,
        };
        Self {
            groups_per_batch,
            batches,
            max_staleness: schedule.max_staleness,
            pin_version: schedule.pin_version && schedule.overlaps(),
            oversample: schedule.oversample,
            cut_order: schedule.cut_order,
            stragglers: schedule.stragglers,
            evaluate_every,
            checkpoint_every,
            reuse: schedule.reuse.map(rule).filter(|rule| rule.groups > 0),
        }
    }

    /// Rejects contradictory settings.
    pub fn validate(&self) -> Result<(), SchedError> {
        if self.groups_per_batch == 0 {
            return Err(SchedError::EmptyBatch);
        }
        if self.pin_version && self.cut_order != CutOrder::Ticket {
            return Err(SchedError::PinRequires(Requirement::TicketOrder));
        }
        if self.pin_version && self.oversample > 0 {
            return Err(SchedError::PinRequires(Requirement::NoOversampling));
        }
        if self.stragglers == Stragglers::Wait {
            if self.max_staleness == 0 {
                return Err(SchedError::WaitRequires(Requirement::Staleness));
            }
            if self.cut_order != CutOrder::Completion {
                return Err(SchedError::WaitRequires(Requirement::CompletionOrder));
            }
            if self.oversample > 0 {
                return Err(SchedError::WaitRequires(Requirement::NoOversampling));
            }
        }
        if self.stragglers == Stragglers::Defer {
            if self.max_staleness > 0 {
                return Err(SchedError::DeferRequires(Requirement::NoStaleness));
            }
            if self.cut_order != CutOrder::Completion {
                return Err(SchedError::DeferRequires(Requirement::CompletionOrder));
            }
            if self.oversample == 0 {
                return Err(SchedError::DeferRequires(Requirement::Oversampling));
            }
        }
        Ok(())
    }
}
