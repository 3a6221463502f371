//! `rloom export`: the files of a run as JSON lines, and its model.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_telemetry::{Event, EventFile, EventLine, RunState, StateReader, StepFiles, rollout_log};
use serde_json::{Value, json};

use super::export_model;
use super::train::find_run;
use crate::arguments::{Export, Exported};
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn run(arguments: &Export, output: Output) -> Result<(), Failure> {
    if arguments.content == Exported::Model {
        return export_model::run(arguments, output);
    }
    let directory = find_run(&arguments.run)?;
    match arguments.content {
        Exported::Events => events(&directory, &arguments.kind, output),
        Exported::Rollouts => rollouts(&directory, arguments, output),
        Exported::Config | Exported::Model => output.json(&config(&directory)?),
    }
}

/// Writes the events, and the state of the run as a last object that has no `event`.
fn events(directory: &Path, kinds: &[String], output: Output) -> Result<(), Failure> {
    let file = open(directory)?;
    let (mut state, mut written) = (StateReader::default(), Ok(()));
    let skipped = file.each(|line, survives| {
        state.add(&line);
        if survives && written.is_ok() && is_wanted(&line, kinds) {
            written = output.json(&line);
        }
    });
    written?;
    let notes = skipped.map_err(Failure::failed)?.sentences();
    let state = state.state(directory);
    let name = state.name();
    let error = if let RunState::Failed(error) = state { Some(error) } else { None };
    output.json(&json!({"state": name, "error": error, "notes": notes}))
}

fn is_wanted(line: &EventLine, kinds: &[String]) -> bool {
    let kind =
        || serde_json::to_value(&line.event).ok()?.get("event").and_then(Value::as_str).map(str::to_owned);
    kinds.is_empty() || kind().is_some_and(|kind| kinds.contains(&kind))
}

fn rollouts(directory: &Path, arguments: &Export, output: Output) -> Result<(), Failure> {
    for (stage, last) in trained(directory)? {
        if arguments.stage.as_ref().is_some_and(|wanted| *wanted != stage) {
            continue;
        }
        for (step, path) in StepFiles::new(directory, &stage, last).logs() {
            if !arguments.step.is_empty() && !arguments.step.contains(&step) {
                continue;
            }
            for line in rollout_log::json_lines(&path).map_err(Failure::failed)? {
                output.data(&with_stage(&stage, &line.map_err(Failure::failed)?)?)?;
            }
        }
    }
    Ok(())
}

/// A logged trajectory with the name of its stage as the first field.
fn with_stage(stage: &str, line: &str) -> Result<String, Failure> {
    let stage = serde_json::to_string(stage).map_err(Failure::failed_text)?;
    Ok(line.replacen('{', &format!("{{\"stage\":{stage},"), 1))
}

/// Stages in order, with the last step that each has trained.
fn trained(directory: &Path) -> Result<Vec<(String, u64)>, Failure> {
    let (mut order, mut last) = (Vec::new(), BTreeMap::new());
    let each = open(directory)?.each(|line, survives| {
        if survives && matches!(line.event, Event::Step { .. }) {
            if !order.contains(&line.stage) {
                order.push(line.stage.clone());
            }
            last.insert(line.stage, line.step);
        }
    });
    each.map_err(Failure::failed)?;
    Ok(order.into_iter().map(|stage| (stage.clone(), last[&stage])).collect())
}

/// The resolved configuration of a run.
pub(super) fn config(directory: &Path) -> Result<Value, Failure> {
    let path = directory.join("config.toml");
    let read = |error: &dyn std::fmt::Display| {
        Failure::failed_text(format_args!("could not read {}: {error}", path.display()))
    };
    let text = std::fs::read_to_string(&path).map_err(|error| read(&error))?;
    let table: toml::Table = text.parse().map_err(|error| read(&error))?;
    serde_json::to_value(table).map_err(|error| read(&error))
}

fn open(directory: &Path) -> Result<EventFile, Failure> {
    EventFile::open(&directory.join("events.jsonl")).map_err(Failure::failed)
}
