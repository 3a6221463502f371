//! `rloom inspect`: shows the results of a run from its files.

mod sample;
mod trace;

use std::path::Path;

use rloom_core::metric;
use rloom_telemetry::{Event, EventLine, StageOutline, read_events, surviving};
use serde::Serialize;

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
    state: State,
    attempts: u32,
    seed: u64,
    threads: usize,
    numeric_path: String,
    parameters: u64,
    seconds: f64,
    stages: Vec<StageOverview>,
    checkpoints: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Finished,
    Interrupted,
    Failed(String),
    /// No end was recorded: the run is in progress, or its process was killed.
    Unfinished,
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
    last: rloom_telemetry::Metrics,
}

#[derive(Debug, Serialize)]
struct Measured {
    step: u64,
    accuracy: f64,
    best: bool,
}

pub(crate) fn run(arguments: &Inspect, output: Output) -> Result<(), Failure> {
    let directory = find_run(&arguments.run)?;
    if let Some(name) = &arguments.sample {
        return sample::run(&directory, name, output);
    }
    let lines = read_events(&directory.join("events.jsonl")).map_err(Failure::failed)?;
    if let Some(file) = &arguments.trace {
        return trace::run(&lines, file, output);
    }
    let overview = overview(&directory, &lines)?;
    if output.json {
        return output.json(&overview);
    }
    let output = output.on_stdout();
    show(&overview, output)?;
    if arguments.samples > 0 {
        show_samples(&lines, arguments.samples, output)?;
    }
    Ok(())
}

fn overview(directory: &Path, lines: &[EventLine]) -> Result<Overview, Failure> {
    let kept = surviving(lines);
    let Some((name, seed, threads, numeric_path, parameters, outlines)) =
        lines.iter().rev().find_map(|line| match &line.event {
            Event::RunStarted { name, seed, threads, numeric_path, parameters, stages, .. } => {
                Some((name.clone(), *seed, *threads, numeric_path.clone(), *parameters, stages.clone()))
            }
            _ => None,
        })
    else {
        return Err(Failure::failed(format!("{} has no events yet", directory.display())));
    };
    let attempts = lines.iter().map(|line| line.attempt).max().unwrap_or(1);
    let longest =
        |attempt| lines.iter().filter(|l| l.attempt == attempt).map(|l| l.elapsed).fold(0.0, f64::max);
    let warnings = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Warning { message } => Some(message.clone()),
            _ => None,
        })
        .collect();
    Ok(Overview {
        directory: directory.display().to_string(),
        name,
        state: state(lines, attempts),
        attempts,
        seed,
        threads,
        numeric_path,
        parameters,
        seconds: (1..=attempts).map(longest).sum(),
        stages: outlines.into_iter().map(|outline| stage(outline, &kept)).collect(),
        checkpoints: checkpoints(directory),
        warnings,
    })
}

fn state(lines: &[EventLine], attempt: u32) -> State {
    let ends = lines.iter().rev().filter(|line| line.attempt == attempt).find_map(|line| match &line.event {
        Event::RunFinished { .. } => Some(State::Finished),
        Event::RunInterrupted { .. } => Some(State::Interrupted),
        Event::RunFailed { error } => Some(State::Failed(error.clone())),
        _ => None,
    });
    ends.unwrap_or(State::Unfinished)
}

fn stage(outline: StageOutline, kept: &[&EventLine]) -> StageOverview {
    let own = || kept.iter().filter(|line| line.stage == outline.name);
    let curve = |name: &str| {
        own()
            .filter_map(|line| match &line.event {
                Event::Step { metrics } => metrics.get(name).copied(),
                _ => None,
            })
            .collect()
    };
    let steps = || {
        own().filter_map(|line| match &line.event {
            Event::Step { metrics } => Some((line.step, metrics)),
            _ => None,
        })
    };
    let (reward, loss) = (curve(metric::REWARD), curve(metric::LOSS));
    let accuracy = own()
        .filter_map(|line| match &line.event {
            Event::Evaluation { metrics, best, .. } => {
                let accuracy = *metrics.get(metric::EVAL_ACCURACY)?;
                Some(Measured { step: line.step, accuracy, best: *best })
            }
            _ => None,
        })
        .collect();
    let done = steps().map(|(step, _)| step).max().unwrap_or(0);
    let last = steps().max_by_key(|(step, _)| *step).map(|(_, m)| m.clone()).unwrap_or_default();
    StageOverview { outline, done, reward, loss, accuracy, last }
}

/// Sorted names of the checkpoints, without links such as `best`.
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
        State::Finished => "finished".to_owned(),
        State::Interrupted => "interrupted; can be resumed".to_owned(),
        State::Failed(error) => format!("failed: {error}"),
        State::Unfinished => "running or killed".to_owned(),
    };
    output.data(&format!("{} {state}", output.paint(BOLD, &overview.name)))?;
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
        output.data(&format!("{title} {}, {} of {} steps", outline.method, stage.done, outline.steps))?;
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
    for warning in &overview.warnings {
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

fn show_samples(lines: &[EventLine], most: usize, output: Output) -> Result<(), Failure> {
    let sample = |line: &&EventLine| matches!(line.event, Event::Sample(_) | Event::EvaluationSample(_));
    let Some(last) = lines.iter().rfind(sample) else {
        output.info("no completions recorded yet");
        return Ok(());
    };
    let same = |line: &&EventLine| line.attempt == last.attempt && line.global_step == last.global_step;
    let shown = lines.iter().filter(same).filter_map(|line| match &line.event {
        Event::Sample(sample) | Event::EvaluationSample(sample) => Some(sample),
        _ => None,
    });
    for sample in shown.take(most) {
        output.data("")?;
        for text in event_text::completion(sample, output) {
            output.data(&text)?;
        }
    }
    Ok(())
}
