use serde::{Deserialize, Serialize};

use crate::SchedError;

/// The order in which ready groups make batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutOrder {
    /// By ticket: batches do not depend on which group finished first.
    #[default]
    Ticket,
    /// By completion: a slow group delays nobody.
    Completion,
}

/// What becomes of a running group that can no longer be trained in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stragglers {
    /// It ends as [`End::Stale`](crate::End::Stale).
    #[default]
    Drop,
    /// It is cancelled and starts again later, in a batch that has none but such groups (tail batching).
    PutOff,
}

/// What the scheduler of one stage is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// Groups in a batch (`B`), at least 1.
    pub batch_groups: u64,
    /// Batches to train.
    pub batches: u64,
    /// Bound on the age of a trained group, in versions (`η`).
    pub max_staleness: u64,
    /// Start group `t` under version `max(0, ⌊t/B⌋ − η)` and no other, so that what it samples does not depend on
    /// timing. Needs ticket order and no over-sampling; a group that is filtered or fails is then an error.
    pub pin_version: bool,
    /// Groups that may run beyond what the batches need.
    pub oversample: u64,
    /// How batches are cut.
    pub cut_order: CutOrder,
    /// What becomes of groups too slow for their batch. [`Stragglers::PutOff`] needs `max_staleness` 0, completion
    /// order and over-sampling.
    pub stragglers: Stragglers,
    /// Evaluate every so many batches (0: never), at the start and at the end too.
    pub evaluate_every: u64,
    /// Save every so many batches (0: at the end alone).
    pub checkpoint_every: u64,
}

impl SchedulerSettings {
    /// Refuses what no run can have.
    pub fn validate(&self) -> Result<(), SchedError> {
        if self.batch_groups == 0 {
            return Err(SchedError::EmptyBatch);
        }
        if self.pin_version && self.cut_order != CutOrder::Ticket {
            return Err(SchedError::PinNeeds("batches cut in ticket order"));
        }
        if self.pin_version && self.oversample > 0 {
            return Err(SchedError::PinNeeds("no over-sampling"));
        }
        if self.stragglers == Stragglers::PutOff {
            if self.max_staleness > 0 {
                return Err(SchedError::PutOffNeeds("a staleness bound of 0"));
            }
            if self.cut_order != CutOrder::Completion {
                return Err(SchedError::PutOffNeeds("batches cut in completion order"));
            }
            if self.oversample == 0 {
                return Err(SchedError::PutOffNeeds("over-sampling"));
            }
        }
        Ok(())
    }
}
