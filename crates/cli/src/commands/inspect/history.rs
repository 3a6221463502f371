//! Collects the overview of a run while its events are read.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use rloom_core::metric;
use rloom_telemetry::{Event, EventLine, Metrics, Sample, SkippedLines, StageOutline, StateReader};

use super::{Measured, Overview, StageOverview, Validated, checkpoints};
use crate::failure::Failure;

/// Maximum number of warnings to store and show.
const WARNINGS: usize = 100;

/// Overview of a run, collected from its events. Stores two numbers per step.
#[derive(Default)]
pub(super) struct History {
    start: Option<Start>,
    state: StateReader,
    /// Duration of each attempt in seconds.
    seconds: BTreeMap<u32, f64>,
    stages: BTreeMap<String, StageHistory>,
    warnings: VecDeque<String>,
    more_warnings: u64,
    /// Hints of the error that ended the last attempt.
    hints: Vec<String>,
    /// Attempt and step of the latest completions.
    sampled: (u32, u64),
    pub(super) samples: Vec<Sample>,
}

/// The last start of the run.
struct Start {
    name: String,
    seed: u64,
    threads: usize,
    numeric_path: String,
    parameters: u64,
    stages: Vec<StageOutline>,
}

#[derive(Default)]
struct StageHistory {
    done: u64,
    reward: Vec<f64>,
    loss: Vec<f64>,
    accuracy: Vec<Measured>,
    validation: Vec<Validated>,
    last: Metrics,
}

impl History {
    /// Adds a line, and whether it survived later attempts.
    pub(super) fn add(&mut self, line: EventLine, survives: bool) {
        self.state.add(&line);
        let seconds = self.seconds.entry(line.attempt).or_insert(0.0);
        *seconds = seconds.max(line.elapsed);
        match line.event {
            Event::RunStarted { name, seed, threads, numeric_path, parameters, stages, .. } => {
                self.hints.clear();
                self.start = Some(Start { name, seed, threads, numeric_path, parameters, stages });
            }
            Event::RunFailed { hints, .. } => self.hints = hints,
            Event::Warning { message } => {
                self.warnings.push_back(message);
                if self.warnings.len() > WARNINGS {
                    self.warnings.pop_front();
                    self.more_warnings += 1;
                }
            }
            Event::Sample(sample) | Event::EvaluationSample(sample) => {
                if self.sampled != (line.attempt, line.global_step) {
                    self.sampled = (line.attempt, line.global_step);
                    self.samples.clear();
                }
                self.samples.push(sample);
            }
            Event::Step { metrics } if survives => {
                self.stages.entry(line.stage).or_default().add_step(line.step, metrics);
            }
            Event::Evaluation { metrics, best, .. } if survives => {
                if let Some(&accuracy) = metrics.get(metric::EVAL_ACCURACY) {
                    let measured = Measured { step: line.step, accuracy, best };
                    self.stages.entry(line.stage).or_default().accuracy.push(measured);
                }
            }
            Event::Validation { metrics, best, .. } if survives => {
                if let Some(&loss) = metrics.get(metric::VALIDATION_LOSS) {
                    let measured = Validated { step: line.step, loss, best };
                    self.stages.entry(line.stage).or_default().validation.push(measured);
                }
            }
            _ => {}
        }
    }

    /// Returns the overview of the run in `directory`.
    pub(super) fn overview(mut self, directory: &Path, skipped: SkippedLines) -> Result<Overview, Failure> {
        let Some(start) = self.start else {
            return Err(Failure::failed_text(format_args!("{} has no events yet", directory.display())));
        };
        let stage = |outline: StageOutline| {
            let StageHistory { done, reward, loss, accuracy, validation, last } =
                self.stages.remove(&outline.name).unwrap_or_default();
            StageOverview { outline, done, reward, loss, accuracy, validation, last }
        };
        Ok(Overview {
            directory: directory.display().to_string(),
            name: start.name,
            state: self.state.state(directory),
            attempts: self.seconds.keys().next_back().copied().unwrap_or(1),
            seed: start.seed,
            threads: start.threads,
            numeric_path: start.numeric_path,
            parameters: start.parameters,
            seconds: self.seconds.values().sum(),
            stages: start.stages.into_iter().map(stage).collect(),
            checkpoints: checkpoints(directory),
            warnings: self.warnings.into(),
            more_warnings: self.more_warnings,
            hints: self.hints,
            skipped,
        })
    }
}

impl StageHistory {
    fn add_step(&mut self, step: u64, metrics: Metrics) {
        self.reward.extend(metrics.get(metric::REWARD));
        self.loss.extend(metrics.get(metric::LOSS));
        if step >= self.done {
            (self.done, self.last) = (step, metrics);
        }
    }
}
