//! Time and steps of a stage.

use crate::survivors::{LineKey, LineKind};

/// Time and steps of a stage. Attempts are concatenated on one axis of seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StageExtent {
    pub(crate) name: String,
    pub(crate) attempts: Vec<AttemptRange>,
    /// Number of trained steps, including repeated ones.
    pub(crate) steps: u64,
}

/// The part of the axis that belongs to an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttemptRange {
    pub(crate) attempt: u32,
    /// Start on the axis.
    pub(crate) axis_start: f64,
    /// Start and end in seconds since the attempt's process started.
    pub(crate) start: f64,
    pub(crate) end: f64,
}

impl StageExtent {
    /// Adds a line to its stage. Lines outside of stages are ignored.
    pub(crate) fn add(stages: &mut Vec<Self>, key: &LineKey<'_>, elapsed: f64) {
        if key.stage.is_empty() {
            return;
        }
        let place = stages.iter().position(|stage| stage.name == key.stage).unwrap_or_else(|| {
            stages.push(Self { name: key.stage.to_owned(), attempts: Vec::new(), steps: 0 });
            stages.len() - 1
        });
        stages[place].add_line(key, elapsed);
    }

    fn add_line(&mut self, key: &LineKey<'_>, elapsed: f64) {
        if self.attempts.last().is_none_or(|last| last.attempt != key.attempt) {
            let axis_start = self.seconds();
            self.attempts.push(AttemptRange {
                attempt: key.attempt,
                axis_start,
                start: elapsed,
                end: elapsed,
            });
        }
        if let Some(last) = self.attempts.last_mut() {
            last.end = last.end.max(elapsed);
        }
        self.steps += u64::from(key.kind == LineKind::Step);
    }

    /// Duration in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.attempts.last().map_or(0.0, |last| last.axis_start + last.end - last.start)
    }

    /// Converts seconds of an attempt to the axis.
    pub(crate) fn on_axis(&self, attempt: u32, seconds: f64) -> Option<f64> {
        let range = self.attempts.iter().rfind(|range| range.attempt == attempt)?;
        Some(range.axis_start + (seconds - range.start).clamp(0.0, range.end - range.start))
    }
}
