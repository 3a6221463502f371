use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Which;

/// Work of a training engine whose progress is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainWork {
    /// Scores micro-batches without a gradient.
    Score(Which),
    /// Runs micro-batches forward and backward.
    Accumulate,
    /// Writes files.
    Write,
}

/// Progress of a call to a training engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrainProgress {
    /// The work.
    pub work: TrainWork,
    /// Micro-batches or files completed.
    pub done: u64,
    /// Micro-batches or files of the call.
    pub total: u64,
}

impl fmt::Display for TrainProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, done, total } = *self;
        let (current, complete, unit) = match work {
            TrainWork::Score(_) => ("scoring", "scored", "micro-batch"),
            TrainWork::Accumulate => ("training", "trained", "micro-batch"),
            TrainWork::Write => ("writing", "wrote", "file"),
        };
        if done < total {
            write!(f, "{current} {unit} {} of {total}", done + 1)?;
        } else {
            let unit = if work == TrainWork::Write { "files" } else { "micro-batches" };
            write!(f, "{complete} {total} of {total} {unit}")?;
        }
        match work {
            TrainWork::Score(Which::Reference) => f.write_str(" with the reference"),
            TrainWork::Score(Which::Teacher) => f.write_str(" with the teacher"),
            _ => Ok(()),
        }
    }
}

/// Receives the progress of a training engine. Called on any thread; returns at once.
#[derive(Clone)]
pub struct ProgressObserver(Arc<dyn Fn(TrainProgress) + Send + Sync>);

impl ProgressObserver {
    /// Wraps a function.
    pub fn new(observe: impl Fn(TrainProgress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Reports progress.
    pub fn report(&self, progress: TrainProgress) {
        (self.0)(progress);
    }

    /// Reports that work on `total` units begins. Returns the counter of those that are completed.
    pub fn begin(&self, work: TrainWork, total: usize) -> ProgressCounter {
        let progress = TrainProgress { work, done: 0, total: total as u64 };
        self.report(progress);
        ProgressCounter { observer: self.clone(), progress }
    }
}

impl Default for ProgressObserver {
    /// Ignores all reports.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for ProgressObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressObserver")
    }
}

/// Counts the completed units of a call and reports each.
#[derive(Debug)]
pub struct ProgressCounter {
    observer: ProgressObserver,
    progress: TrainProgress,
}

impl ProgressCounter {
    /// Reports that one more unit is complete.
    pub fn advance(&mut self) {
        self.progress.done += 1;
        self.observer.report(self.progress);
    }

    /// Reports several completed ones, one after another.
    pub fn advance_by(&mut self, count: usize) {
        for _ in 0..count {
            self.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_the_unit_that_is_computed() {
        let text = |work, done| TrainProgress { work, done, total: 120 }.to_string();
        assert_eq!(text(TrainWork::Accumulate, 36), "training micro-batch 37 of 120");
        assert_eq!(text(TrainWork::Accumulate, 120), "trained 120 of 120 micro-batches");
        assert_eq!(text(TrainWork::Score(Which::Policy), 0), "scoring micro-batch 1 of 120");
        let reference = TrainWork::Score(Which::Reference);
        assert_eq!(text(reference, 119), "scoring micro-batch 120 of 120 with the reference");
        assert_eq!(text(TrainWork::Write, 2), "writing file 3 of 120");
        assert_eq!(text(TrainWork::Write, 120), "wrote 120 of 120 files");
    }
}
