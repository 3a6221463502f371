//! The trainer: its activity, the batch in flight and the newest published version.

use super::totals::{BatchTotals, TrainerActivity};

/// State of the trainer.
#[derive(Debug)]
pub(crate) struct Trainer {
    pub(crate) activity: TrainerActivity,
    /// Contribution of the batch being trained.
    in_flight: BatchTotals,
    /// Newest published version.
    pub(crate) version: u64,
}

impl Trainer {
    /// An idle trainer with the initial weights of the stage.
    pub(crate) fn new() -> Self {
        Self { activity: TrainerActivity::Idle, in_flight: BatchTotals::default(), version: 0 }
    }

    pub(crate) fn train(&mut self, batch: BatchTotals) {
        self.in_flight = batch;
        self.activity = TrainerActivity::Train;
    }

    /// Completes the batch in flight and returns its totals.
    pub(crate) fn published(&mut self) -> BatchTotals {
        self.version += 1;
        self.activity = TrainerActivity::Idle;
        std::mem::take(&mut self.in_flight)
    }
}
