use serde::{Deserialize, Serialize};

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

/// What the scheduler of one stage is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// Groups in a batch (`B`), at least 1.
    pub batch_groups: u64,
    /// Batches to train.
    pub batches: u64,
    /// Bound on the age of a trained group, in versions (`η`).
    pub max_staleness: u64,
    /// Groups that may run beyond what the batches need.
    pub oversample: u64,
    /// How batches are cut.
    pub cut_order: CutOrder,
    /// Evaluate every so many batches (0: never), at the start and at the end too.
    pub evaluate_every: u64,
    /// Save every so many batches (0: at the end alone).
    pub checkpoint_every: u64,
}
