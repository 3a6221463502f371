//! Reads the measurements for a calibration from the files of a run: events and rollouts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use rloom_core::{Author, Trajectory, metric};
use rloom_sim::{ObservedRequest, ObservedRun, ObservedStep, group_correlation};
use rloom_telemetry::{Event, EventFile, EventLine};
use serde::Deserialize;

use super::error::PlanError;
use crate::failure::Failure;

/// Leading steps left out if there are others: the first step of a process includes one-time initialisation.
const COLD_STEPS: usize = 1;

/// Metrics that a calibration needs, besides those of filters.
const MEASURED: [&str; 6] = [
    metric::TIME_REWARD,
    metric::TIME_CHECKPOINT,
    metric::TIME_ROLLOUT,
    metric::ROLLOUT_TOKENS_PER_SECOND,
    metric::TIME_TRAIN,
    metric::TRAIN_TOKENS_PER_SECOND,
];

#[derive(Debug, Deserialize)]
struct Line {
    #[serde(flatten)]
    trajectory: Trajectory,
}

/// An `activity` event. Has only the fields needed here, so that event files of other versions can be read.
#[derive(Debug, Deserialize)]
struct ActivityLine {
    event: String,
    #[serde(default)]
    activity: String,
    #[serde(default)]
    start: f64,
    #[serde(default)]
    end: f64,
}

/// Sums over the rollouts of a step.
#[derive(Debug, Default)]
struct Rollouts {
    generated: f64,
    longest: f64,
    samples: f64,
}

/// Measurements of a run.
#[derive(Debug)]
pub(crate) struct Observed {
    /// What a profile is fitted to.
    pub(crate) run: ObservedRun,
    /// Mean time between the ends of two steps, in seconds; 0 if there are no two.
    pub(crate) seconds_per_step: f64,
}

/// Reads the measurements of stage `name`, by default of the last one whose steps sampled.
pub(crate) fn run(directory: &Path, name: Option<&str>) -> Result<Observed, Failure> {
    let path = directory.join("events.jsonl");
    let events = EventFile::open(&path).map_err(Failure::failed)?;
    let lines = events.select(measurement).map_err(Failure::failed)?;
    let kept: Vec<&EventLine> = lines.iter().collect();
    let sampled = |line: &&&EventLine| matches!(&line.event, Event::Step { metrics } if metrics.contains_key(metric::TIME_ROLLOUT));
    let stage = match name {
        Some(name) => name.to_owned(),
        None => kept.iter().rev().find(sampled).map(|line| line.stage.clone()).unwrap_or_default(),
    };
    let devices = lines.iter().rev().find_map(|line| match &line.event {
        Event::RunStarted { threads, .. } => Some(*threads as u32),
        _ => None,
    });
    let mut observed = ObservedRun {
        about: format!("fitted to stage `{stage}` of {}", directory.display()),
        devices: devices.unwrap_or(1),
        ..ObservedRun::default()
    };
    read_durations(&path, &mut observed)?;
    let steps: Vec<&&EventLine> = kept.iter().filter(sampled).filter(|line| line.stage == stage).collect();
    let warm = if steps.len() > COLD_STEPS { &steps[COLD_STEPS..] } else { &steps[..] };
    let (mut rewards, mut samples, mut filtered, mut trained_groups) = (0.0, 0.0, 0.0, 0.0);
    let mut groups: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for line in warm {
        let Event::Step { metrics } = &line.event else { continue };
        let get = |name: &str| metrics.get(name).copied().unwrap_or(0.0);
        let file = directory.join("rollouts").join(format!("{stage}-step-{:06}.jsonl.zst", line.step));
        let before = groups.len();
        let Ok(rollouts) = read_rollouts(&file, &mut observed, &mut groups) else { continue };
        trained_groups += (groups.len() - before) as f64;
        rewards += get(metric::TIME_REWARD);
        samples += rollouts.samples;
        filtered += metrics
            .iter()
            .filter(|(k, _)| k.starts_with(metric::FILTERED_PREFIX))
            .map(|(_, v)| v)
            .sum::<f64>();
        if metrics.contains_key(metric::TIME_CHECKPOINT) && observed.checkpoint.is_empty() {
            observed.checkpoint.push(get(metric::TIME_CHECKPOINT));
        }
        observed.steps.push(ObservedStep {
            rollout_seconds: get(metric::TIME_ROLLOUT),
            // The rollout log contains only trained groups; the rate also counts replaced ones.
            generated: (get(metric::ROLLOUT_TOKENS_PER_SECOND) * get(metric::TIME_ROLLOUT))
                .max(rollouts.generated),
            longest: rollouts.longest,
            train_seconds: get(metric::TIME_TRAIN),
            trained: get(metric::TRAIN_TOKENS_PER_SECOND) * get(metric::TIME_TRAIN),
        });
    }
    let first = warm.first().map_or(0, |line| line.step);
    read_requests(kept.iter().filter(|line| line.stage == stage && line.step >= first), &mut observed);
    observed.reward_seconds = if samples > 0.0 { rewards / samples } else { 0.0 };
    let drawn = filtered + trained_groups;
    observed.filter_rate = if drawn > 0.0 { filtered / drawn } else { 0.0 };
    observed.group_correlation = group_correlation(&groups.into_values().collect::<Vec<_>>());
    let between = |pair: &[&&EventLine]| {
        (pair[0].attempt == pair[1].attempt).then(|| pair[1].elapsed - pair[0].elapsed)
    };
    let durations: Vec<f64> = steps.windows(2).filter_map(between).collect();
    let seconds_per_step = durations.iter().sum::<f64>() / durations.len().max(1) as f64;
    Ok(Observed { run: observed, seconds_per_step })
}

/// Reads the times of requests to inference servers, where recorded.
fn read_requests<'a>(lines: impl Iterator<Item = &'a &'a EventLine>, observed: &mut ObservedRun) {
    let mut updates = Vec::new();
    for line in lines {
        let Event::Requests(times) = &line.event else { continue };
        observed.servers = times.replicas as u32;
        updates.extend(&times.updates);
        let requests = times.tokens.iter().zip(&times.seconds).zip(&times.concurrency);
        observed.requests.extend(requests.map(|((&tokens, &seconds), &concurrency)| ObservedRequest {
            tokens: tokens as f64,
            seconds,
            concurrency,
        }));
    }
    if !updates.is_empty() {
        // Those of the whole pool include the time in which requests in flight finish.
        observed.load = updates;
    }
}

/// Returns the starts of the run, and its steps with the metrics that a calibration needs.
fn measurement(mut line: EventLine) -> Option<EventLine> {
    match &mut line.event {
        Event::RunStarted { .. } | Event::Requests(_) => Some(line),
        Event::Step { metrics } => {
            metrics
                .retain(|name, _| MEASURED.contains(&&**name) || name.starts_with(metric::FILTERED_PREFIX));
            Some(line)
        }
        _ => None,
    }
}

/// Reads the durations of publications, loads, evaluations and checkpoints, where recorded.
fn read_durations(path: &Path, observed: &mut ObservedRun) -> Result<(), PlanError> {
    let file = File::open(path).map_err(|error| PlanError::Read { path: path.to_owned(), error })?;
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        let Ok(activity) = serde_json::from_slice::<ActivityLine>(&line) else { continue };
        if activity.event != "activity" {
            continue;
        }
        let seconds = activity.end - activity.start;
        match activity.activity.as_str() {
            "publish" => observed.publish.push(seconds),
            "load_weights" => observed.load.push(seconds),
            "evaluate" => observed.evaluate.push(seconds),
            "checkpoint" => observed.checkpoint.push(seconds),
            _ => {}
        }
    }
    Ok(())
}

/// Reads the rollouts of a step: lengths are added to `observed`, and by ticket to `groups`.
fn read_rollouts(
    path: &Path,
    observed: &mut ObservedRun,
    groups: &mut BTreeMap<u64, Vec<f64>>,
) -> std::io::Result<Rollouts> {
    let (mut sums, mut last) = (Rollouts::default(), None);
    for line in BufReader::new(zstd::Decoder::new(File::open(path)?)?).lines() {
        let Ok(Line { trajectory }) = serde_json::from_str(&line?) else { continue };
        let episode = (trajectory.key.ticket, trajectory.key.sample);
        let of_group = groups.entry(trajectory.key.ticket.0).or_default();
        // Further segments continue the episode of the line before.
        let continues = last.replace(episode) == Some(episode);
        let before = continues.then(|| Some((observed.turns.pop()?, of_group.pop()?))).flatten();
        let (mut turns, known) = before.unwrap_or_default();
        let mut generated = known;
        for span in &trajectory.spans {
            let tokens = span.range.len() as f64;
            match span.author {
                Author::Policy => {
                    observed.turn_tokens.push(tokens);
                    turns += 1.0;
                    generated += tokens;
                }
                Author::Prompt if before.is_none() => observed.prompt_tokens.push(tokens),
                // Engines compute the prompt of a further segment between two turns.
                Author::Prompt | Author::Environment => observed.observation_tokens.push(tokens),
            }
        }
        observed.turns.push(turns);
        sums.generated += generated - known;
        sums.longest = sums.longest.max(generated);
        sums.samples += if before.is_none() { 1.0 } else { 0.0 };
        of_group.push(generated);
    }
    Ok(sums)
}
