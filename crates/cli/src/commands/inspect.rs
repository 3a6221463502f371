//! `rloom inspect`: shows the results of a run from its files.

mod history;
mod sample;
mod trace;

use std::path::Path;

use rloom_run::lineage::LineageError;
use rloom_telemetry::{EventFile, RunState, Sample, SkippedLines, StageOutline};
use serde::Serialize;

use history::History;

use super::train::find_run;
use crate::arguments::Inspect;
use crate::failure::Failure;
use crate::output::{BOLD, CYAN, Output, YELLOW};
use crate::progress::event_text;
use crate::progress::numbers::{bytes, count, duration, percent};
use crate::progress::sparkline::sparkline;

const CURVE: usize = 30;

/// Overview of a run.
#[derive(Debug, Serialize)]
struct Overview {
    directory: String,
    name: String,
    state: RunState,
    attempts: u32,
    seed: u64,
    threads: usize,
    numeric_path: String,
    parameters: u64,
    seconds: f64,
    stages: Vec<StageOverview>,
    checkpoints: Vec<String>,
    warnings: Vec<String>,
    /// Warnings that are left out because there are too many.
    more_warnings: u64,
    /// Hints of the error that ended the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<String>,
    /// Lines of the event stream that could not be used.
    skipped: SkippedLines,
}

#[derive(Debug, Serialize)]
struct StageOverview {
    #[serde(flatten)]
    outline: StageOutline,
    /// Number of completed steps.
    done: u64,
    reward: Vec<f64>,
    loss: Vec<f64>,
    accuracy: Vec<Measured>,
    /// Losses on held-out rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    validation: Vec<Validated>,
    last: rloom_telemetry::Metrics,
}

#[derive(Debug, Serialize)]
struct Measured {
    step: u64,
    accuracy: f64,
    best: bool,
}

#[derive(Debug, Serialize)]
struct Validated {
    step: u64,
    loss: f64,
    best: bool,
}

pub(crate) fn run(arguments: &Inspect, output: Output) -> Result<(), Failure> {
    let sample = arguments
        .sample
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|error: LineageError| Failure::usage(error))?;
    let directory = find_run(&arguments.run)?;
    if let Some(name) = &sample {
        return sample::run(&directory, name, output);
    }
    let events = EventFile::open(&directory.join("events.jsonl")).map_err(Failure::failed)?;
    if let Some(file) = &arguments.trace {
        return trace::run(&events, file, output);
    }
    let mut history = History::default();
    let skipped = events.each(|line, survives| history.add(line, survives)).map_err(Failure::failed)?;
    let samples = std::mem::take(&mut history.samples);
    let overview = history.overview(&directory, skipped)?;
    if output.json {
        return output.json(&overview);
    }
    let output = output.on_stdout();
    show(&overview, output)?;
    if arguments.samples > 0 {
        show_samples(&samples, arguments.samples, output)?;
    }
    Ok(())
}

/// Checkpoints by name, with their sizes. Links (`best`, `last`) are left to those who follow them.
fn checkpoints(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory.join("checkpoints")).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    found.sort();
    found
}

fn show(overview: &Overview, output: Output) -> Result<(), Failure> {
    let state = match &overview.state {
        RunState::Finished => "finished".to_owned(),
        RunState::Interrupted => "interrupted, can be resumed".to_owned(),
        RunState::Failed(error) => format!("failed: {error}"),
        RunState::Running => "running".to_owned(),
        RunState::Killed => "killed, can be resumed".to_owned(),
    };
    output.data(&format!("{} {state}", output.paint(BOLD, &overview.name)))?;
    for hint in &overview.hints {
        output.data(&format!("hint: {hint}"))?;
    }
    output.data(&format!(
        "{} parameters, seed {}, {} threads, {}, {} in {} attempt{}",
        count(overview.parameters),
        overview.seed,
        overview.threads,
        overview.numeric_path,
        duration(overview.seconds),
        overview.attempts,
        if overview.attempts == 1 { "" } else { "s" },
    ))?;
    for stage in &overview.stages {
        let outline = &stage.outline;
        output.data("")?;
        let title = output.paint(BOLD, &format!("stage {}", outline.name));
        let format = outline.rollout_format();
        let steps = format!("{} of {} steps", stage.done, outline.steps);
        output.data(&format!("{title} {}, {steps}{format}", outline.method))?;
        for (name, values) in [("reward", &stage.reward), ("loss", &stage.loss)] {
            // A policy-gradient loss does not indicate the quality of the policy.
            if let ([first, .., last], false) =
                (values.as_slice(), name == "loss" && !stage.reward.is_empty())
            {
                output
                    .data(&format!("  {name:<10} {first:.3} to {last:.3}  {}", sparkline(values, CURVE)))?;
            }
        }
        if let (Some(first), Some(last)) = (stage.accuracy.first(), stage.accuracy.last()) {
            let curve: Vec<f64> = stage.accuracy.iter().map(|m| m.accuracy).collect();
            let (from, to) = (percent(first.accuracy), percent(last.accuracy));
            output.data(&format!("  {:<10} {from} to {to}  {}", "held out", sparkline(&curve, CURVE)))?;
        }
        if let (Some(first), Some(last)) = (stage.validation.first(), stage.validation.last()) {
            let curve: Vec<f64> = stage.validation.iter().map(|m| m.loss).collect();
            let ends = format!("{:.4} to {:.4}", first.loss, last.loss);
            output.data(&format!("  {:<10} {ends}  {}", "validation", sparkline(&curve, CURVE)))?;
        }
        if !stage.last.is_empty() {
            output.data(&format!("  {:<10} {}", "last step", event_text::summary(&stage.last)))?;
        }
    }
    let best = overview
        .stages
        .iter()
        .flat_map(|s| s.accuracy.iter().filter(|m| m.best).map(move |m| (s, m)))
        .next_back();
    output.data("")?;
    if let Some((stage, measured)) = best {
        let accuracy = percent(measured.accuracy);
        output.data(&format!(
            "best         {accuracy} held out, stage {} step {}",
            stage.outline.name, measured.step
        ))?;
    }
    let mut validated = overview.stages.iter().flat_map(|s| s.validation.iter().map(move |m| (s, m)));
    if let Some((stage, Validated { step, loss, .. })) = validated.rfind(|(_, m)| m.best) {
        let name = &stage.outline.name;
        output.data(&format!("best         validation loss {loss:.4}, stage {name} step {step}"))?;
    }
    for (i, name) in overview.checkpoints.iter().enumerate() {
        let label = if i == 0 { "checkpoints" } else { "" };
        let path = Path::new(&overview.directory).join("checkpoints").join(name);
        output.data(&format!(
            "{label:<12} {} ({})",
            output.paint(CYAN, &path.display().to_string()),
            bytes(size(&path))
        ))?;
    }
    let report = Path::new(&overview.directory).join("report.html");
    if report.is_file() {
        output.data(&format!("{:<12} {}", "report", output.paint(CYAN, &report.display().to_string())))?;
    }
    let more = (overview.more_warnings > 0)
        .then(|| format!("{} earlier warnings are in events.jsonl", overview.more_warnings));
    for warning in more.iter().chain(&overview.warnings).chain(&overview.skipped.sentences()) {
        output.data(&format!("{}: {warning}", output.paint(YELLOW, "warning")))?;
    }
    Ok(())
}

fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

fn show_samples(samples: &[Sample], most: usize, output: Output) -> Result<(), Failure> {
    if samples.is_empty() {
        output.info("no completion was recorded yet");
    }
    for sample in samples.iter().take(most) {
        output.data("")?;
        for text in event_text::completion(sample, output) {
            output.data(&text)?;
        }
    }
    Ok(())
}
