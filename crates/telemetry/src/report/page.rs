//! The content of the page, collected while the events are read.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_core::metric;
use serde::Serialize;

use super::charts::{Chart, Constant, MISMATCH, ONLY_OFF_POLICY, charts, charts_by_name, is_by_name};
use super::completions::{Completions, Row, Source, short};
use super::series::{Curve, Series};
use super::timeline::{StageTimeline, Timelines};
use crate::event::{CalibrationBin, Event, EventLine, Metrics, StageOutline};
use crate::event_file::{EventFile, SkippedLines};
use crate::state::{RunState, StateReader};

/// Most series by domain or evaluation set; further ones are left out.
const SERIES_BY_NAME: usize = 72;
/// Largest number of warnings shown.
const WARNINGS: usize = 20;
/// Largest age with a bar of its own; older tokens are counted with it.
const OLDEST: u64 = 32;

/// The data of the page.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    pub(super) name: String,
    pub(super) about: String,
    /// State of the run in words.
    pub(super) state: String,
    /// Unix time of the last event.
    pub(super) last_event: f64,
    pub(super) cards: Vec<(String, String)>,
    pub(super) warnings: Vec<String>,
    pub(super) stages: Vec<StageBand>,
    pub(super) charts: Vec<Chart>,
    /// Charts that are folded away because their values do not change.
    pub(super) constants: Vec<Constant>,
    pub(super) curves: BTreeMap<String, Curve>,
    /// Calibration curve of the last validation of each reward model.
    pub(super) calibrations: Vec<Calibration>,
    pub(super) timeline: Vec<StageTimeline>,
    /// Mean fraction of trained tokens by age in policy versions, over the steps that report it.
    pub(super) ages: Vec<(u64, f64)>,
    pub(super) samples: Vec<Row>,
    /// Sentence about the completions that were left out; empty if there are none.
    pub(super) samples_note: String,
    pub(super) config: String,
}

#[derive(Debug, Serialize)]
pub(super) struct StageBand {
    name: String,
    from: u64,
    to: u64,
}

/// Calibration curve of a stage's reward model after a step.
#[derive(Debug, Serialize)]
pub(super) struct Calibration {
    stage: String,
    step: u64,
    bins: Vec<CalibrationBin>,
}

/// Greedy held-out accuracy of a stage.
#[derive(Debug)]
struct Accuracy {
    stage: String,
    first: f64,
    last: f64,
}

/// Collects the content of the page from the lines of an event stream. Holds a bounded part of them.
#[derive(Debug)]
pub(super) struct PageBuilder {
    name: String,
    about: String,
    stages: Vec<StageBand>,
    series: BTreeMap<String, Series>,
    /// Number of series by domain or set.
    by_name: usize,
    /// Sums of the fractions of trained tokens by age.
    ages: BTreeMap<u64, f64>,
    timelines: Timelines,
    train: Completions,
    eval: Completions,
    warnings: Vec<String>,
    last_warning: String,
    warning_count: u64,
    /// Accuracies in the order of the stages.
    accuracies: Vec<Accuracy>,
    /// In the order of the stages.
    calibrations: Vec<Calibration>,
    /// Duration of each attempt in seconds.
    seconds: BTreeMap<u32, f64>,
    last_event: f64,
    state: StateReader,
}

impl PageBuilder {
    pub(super) fn new(events: &EventFile) -> Self {
        let charts = charts();
        let of_charts = charts.iter().flat_map(|chart| &chart.series).flat_map(|line| &line.names);
        let mut names: Vec<String> = of_charts.map(ToString::to_string).collect();
        names
            .extend([metric::FRESH_TOKENS, metric::STALENESS_MAX, metric::STALENESS_MEAN].map(str::to_owned));
        Self {
            name: String::new(),
            about: String::new(),
            stages: Vec::new(),
            series: names.into_iter().map(|name| (name, Series::default())).collect(),
            by_name: 0,
            ages: BTreeMap::new(),
            timelines: Timelines::new(events.stages()),
            train: Completions::new(Source::Train),
            eval: Completions::new(Source::Eval),
            warnings: Vec::new(),
            last_warning: String::new(),
            warning_count: 0,
            accuracies: Vec::new(),
            calibrations: Vec::new(),
            seconds: BTreeMap::new(),
            last_event: 0.0,
            state: StateReader::default(),
        }
    }

    /// Adds a line. Lines that a later attempt superseded only count for the timeline.
    pub(super) fn add(&mut self, line: &EventLine, survives: bool) {
        self.timelines.add(line);
        self.state.add(line);
        self.last_event = self.last_event.max(line.time);
        if !survives {
            return;
        }
        let seen = self.seconds.entry(line.attempt).or_insert(0.0);
        *seen = seen.max(line.elapsed);
        match &line.event {
            Event::RunStarted { name, version, seed, threads, numeric_path, parameters, stages, .. } => {
                self.name.clone_from(name);
                self.about = format!(
                    "RLoom {version} · seed {seed} · {threads} threads · {numeric_path} · {parameters} parameters"
                );
                self.stages = bands(stages);
            }
            Event::Step { metrics } => self.add_metrics(line.global_step, metrics),
            Event::Validation { metrics, calibration, .. } => {
                self.add_calibration(line, calibration);
                self.add_metrics(line.global_step, metrics);
            }
            Event::Evaluation { metrics, .. } => {
                self.add_accuracy(&line.stage, metrics);
                self.add_metrics(line.global_step, metrics);
            }
            Event::Sample(sample) => self.train.add(line, sample.clone()),
            Event::EvaluationSample(sample) => self.eval.add(line, sample.clone()),
            Event::Warning { message } => self.add_warning(message),
            Event::RunFailed { error, hints } => {
                self.add_warning(&format!("the run failed: {error}"));
                for hint in hints {
                    self.add_warning(&format!("hint: {hint}"));
                }
            }
            _ => {}
        }
    }

    fn add_metrics(&mut self, step: u64, metrics: &Metrics) {
        for (name, &value) in metrics {
            if let Some(series) = self.series.get_mut(name.as_str()) {
                series.add(step, value);
            } else if self.by_name < SERIES_BY_NAME && is_by_name(name) {
                self.by_name += 1;
                self.series.entry(name.clone()).or_default().add(step, value);
            }
            let age =
                name.strip_prefix(metric::STALENESS_SHARE_PREFIX).and_then(|age| age.parse::<u64>().ok());
            if let Some(age) = age {
                *self.ages.entry(age.min(OLDEST)).or_default() += value;
            }
        }
    }

    fn add_accuracy(&mut self, stage: &str, metrics: &Metrics) {
        let Some(&value) = metrics.get(metric::EVAL_ACCURACY) else { return };
        match self.accuracies.iter_mut().position(|accuracy| accuracy.stage == stage) {
            Some(place) => self.accuracies[place].last = value,
            None => self.accuracies.push(Accuracy { stage: stage.to_owned(), first: value, last: value }),
        }
    }

    fn add_calibration(&mut self, line: &EventLine, bins: &[CalibrationBin]) {
        if bins.is_empty() {
            return;
        }
        self.calibrations.retain(|calibration| calibration.stage != line.stage);
        self.calibrations.push(Calibration {
            stage: line.stage.clone(),
            step: line.step,
            bins: bins.to_vec(),
        });
    }

    fn add_warning(&mut self, message: &str) {
        if self.last_warning == message {
            return;
        }
        message.clone_into(&mut self.last_warning);
        self.warning_count += 1;
        // The first and the latest.
        if self.warnings.len() == WARNINGS {
            self.warnings.remove(WARNINGS / 2);
        }
        self.warnings.push(short(message.to_owned()));
    }

    /// Returns the state of the run in `directory`.
    pub(super) fn state(&self, directory: &Path) -> RunState {
        self.state.state(directory)
    }

    /// Number of steps trained, over all stages.
    fn last_step(&self) -> u64 {
        let last = |series: &Series| series.curve().points.last().map_or(0, |point| point.0);
        self.series.values().map(last).max().unwrap_or(0)
    }

    fn value(&self, name: &str) -> Option<&Series> {
        self.series.get(name).filter(|series| series.values() > 0)
    }

    pub(super) fn finish(mut self, state: &RunState, skipped: SkippedLines, config: String) -> Page {
        let is_stale =
            self.value(metric::STALENESS_MAX).and_then(Series::highest).is_some_and(|age| age > 0.0);
        let mut charts = charts();
        charts.extend(charts_by_name(self.series.keys()));
        charts.retain(|chart| is_stale || !ONLY_OFF_POLICY.contains(&chart.title));
        if is_stale && let Some(chart) = charts.iter_mut().find(|chart| chart.title == MISMATCH) {
            // The tokens come from older versions, so the difference also contains the training since then.
            chart.title = "Largest |sampling − training| log-probability difference, across versions";
        }
        let mut constants = Vec::new();
        charts.retain(|chart| {
            let is_present = |name: &str| self.value(name).is_some();
            let found = chart.constant(is_present, |name| self.value(name)?.constant());
            let is_kept = found.is_none();
            constants.extend(found);
            is_kept
        });
        let shown: Vec<String> = charts
            .iter()
            .flat_map(|chart| &chart.series)
            .flat_map(|line| &line.names)
            .map(ToString::to_string)
            .collect();
        let steps = self.value(metric::FRESH_TOKENS).map_or(1, Series::values).max(1) as f64;
        Page {
            state: self.state_text(state),
            last_event: self.last_event,
            cards: self.cards(is_stale),
            warnings: self.warnings(skipped),
            curves: shown
                .into_iter()
                .filter_map(|name| {
                    let curve = self.value(&name)?.curve();
                    Some((name, curve))
                })
                .collect(),
            charts,
            constants,
            ages: self.ages.iter().map(|(&age, sum)| (age, sum / steps)).collect(),
            samples_note: samples_note(&self.train, &self.eval),
            samples: self.train.into_rows().chain(self.eval.into_rows()).collect(),
            calibrations: self.calibrations,
            timeline: self.timelines.finish(),
            name: std::mem::take(&mut self.name),
            about: self.about,
            stages: self.stages,
            config,
        }
    }

    fn state_text(&self, state: &RunState) -> String {
        let total = self.stages.last().map_or(0, |band| band.to);
        let progress = format!("step {} of {total}", self.last_step());
        match state {
            RunState::Finished => "finished".to_owned(),
            RunState::Interrupted => format!("interrupted at {progress}, can be resumed"),
            RunState::Failed(_) => format!("failed at {progress}"),
            RunState::Running => format!("running, {progress}"),
            RunState::Killed => format!("killed at {progress}, can be resumed"),
        }
    }

    fn cards(&self, is_stale: bool) -> Vec<(String, String)> {
        let mut cards = Vec::new();
        if let Some(Accuracy { stage, first, last }) = self.accuracies.last() {
            cards.push((percent(*first), format!("held-out accuracy before {stage}")));
            cards.push((percent(*last), "held-out accuracy at the end".into()));
        }
        let total: f64 = self.seconds.values().sum();
        cards.push((format!("{:.1} min", total / 60.0), "wall-clock time".into()));
        cards.extend(if is_stale { self.age_card() } else { self.mismatch_card() });
        cards
    }

    fn mismatch_card(&self) -> Option<(String, String)> {
        let largest = self.value(metric::MISMATCH_MAX_ABS)?.highest()?.max(0.0);
        // Distinguishes an exact zero from a small number.
        let text = if largest == 0.0 { "0.0".to_owned() } else { format!("{largest:.1e}") };
        Some((text, "largest |sampling − training| difference".into()))
    }

    fn age_card(&self) -> Option<(String, String)> {
        let mean = self.value(metric::STALENESS_MEAN)?.mean()?;
        Some((format!("{mean:.2}"), "mean age of trained tokens, in policy versions".into()))
    }

    fn warnings(&self, skipped: SkippedLines) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        let left_out = self.warning_count - warnings.len() as u64;
        if left_out > 0 {
            let sentence =
                format!("{} are left out here and are in events.jsonl", plural(left_out, "more warning"));
            warnings.insert(WARNINGS / 2, sentence);
        }
        warnings.extend(skipped.sentences());
        warnings
    }

    /// Bytes held in memory, without the short texts about the run.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let series: usize = self.series.values().map(Series::held).sum();
        let warnings: usize = self.warnings.iter().map(String::len).sum();
        series * 24
            + self.ages.len() * 16
            + self.timelines.held() * 48
            + warnings
            + self.train.held()
            + self.eval.held()
    }
}

fn samples_note(train: &Completions, eval: &Completions) -> String {
    let note = |completions: &Completions, source: &str| {
        let ((all, kept), (steps, kept_steps)) = (completions.counts(), completions.steps());
        (kept < all).then(|| {
            format!("{kept} of {all} {source} completions are shown, from {kept_steps} of {steps} steps.")
        })
    };
    let notes: Vec<String> =
        [note(train, "training"), note(eval, "evaluation")].into_iter().flatten().collect();
    if notes.is_empty() { String::new() } else { format!("{} All are in events.jsonl.", notes.join(" ")) }
}

fn bands(stages: &[StageOutline]) -> Vec<StageBand> {
    let mut from = 0;
    let band = |stage: &StageOutline| {
        let name = format!("{} ({}{})", stage.name, stage.method, stage.rollout_format());
        let band = StageBand { name, from, to: from + stage.steps };
        from = band.to;
        band
    };
    stages.iter().map(band).collect()
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
