//! `rloom plan`: a recipe in virtual time, on hardware that need not be there.

mod observe;
mod recipe;
mod svg;
mod view;

use std::path::Path;

use rloom_config::Config;
use rloom_sim::{
    Calibration, Choice, Profile, Recommendation, Report, Split, calibrate, frontier, recommend, simulate,
};
use serde::Serialize;

use super::train::find_run;
use crate::arguments::Plan;
use crate::failure::Failure;
use crate::output::{CYAN, Output};
use recipe::Recipe;

/// Bounds on staleness that are looked at besides the recipe's.
const BOUNDS: [u64; 5] = [0, 1, 2, 4, 8];
/// Splits that are looked at, at most.
const SPLITS: u32 = 7;
/// Samples of one point of the frontier, and of the recipe itself.
const SWEEP_SAMPLES: u64 = 30_000;
const SAMPLES: u64 = 300_000;
/// The share of the best speed that may be given up for fresher data.
const TOLERANCE: f64 = 0.02;
/// The largest bound that is recommended: up to it accuracy was published as unharmed (AReaL, arXiv 2505.24298).
const MOST_STALENESS: u64 = 4;
/// The profile where none is named.
const DEFAULT: &str = "laptop-cpu";

/// All that was found.
#[derive(Debug, Serialize)]
struct Found<'a> {
    stage: &'a str,
    method: &'a str,
    profile: &'a Profile,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Fitted>,
    /// The recipe as it is.
    configured: &'a Choice,
    recommended: Option<Recommended<'a>>,
    frontier: &'a [Choice],
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Fitted {
    steps: usize,
    rollout_error: f64,
    train_error: f64,
}

#[derive(Debug, Serialize)]
struct Recommended<'a> {
    #[serde(flatten)]
    choice: &'a Choice,
    #[serde(flatten)]
    why: Recommendation,
}

pub(crate) fn run(arguments: &Plan, output: Output) -> Result<(), Failure> {
    let (profile, calibration, config) = load(arguments, output)?;
    let devices = arguments.devices.unwrap_or(profile.devices);
    let recipe = Recipe::new(&config, arguments, &profile)?;
    let splits = match arguments.rollout_devices {
        Some(rollout) => vec![own_split(rollout, devices, &profile)?],
        None => profile.splits(devices, SPLITS),
    };
    let mut bounds = BOUNDS.to_vec();
    bounds.push(recipe.scheduler.max_staleness);
    bounds.sort_unstable();
    bounds.dedup();
    bounds.retain(|&eta| recipe.allows(eta));
    let steps = |samples: u64| {
        let fit = (samples / recipe.samples_per_step()).max(12);
        arguments.steps.unwrap_or(recipe.scheduler.batches.min(fit)).max(1)
    };
    let sweep_steps = steps(SWEEP_SAMPLES);
    let choices = frontier(&splits, &bounds, |split, eta| recipe.scenario(&profile, split, eta, sweep_steps))
        .map_err(Failure::failed)?;
    let configured = configured(&recipe, &profile, &choices, steps(SAMPLES))?;
    let recommendation = recommend(&choices, TOLERANCE, MOST_STALENESS);
    let found = Found {
        stage: &recipe.stage,
        method: &recipe.method,
        profile: &profile,
        calibration,
        configured: &configured,
        recommended: recommendation.map(|why| Recommended { choice: &choices[why.choice], why }),
        frontier: if arguments.sweep { &choices } else { &[] },
    };
    if let Some(path) = &arguments.svg {
        write(path, &svg::draw(&choices, recommendation.map(|r| r.choice)))?;
        output.say(&format!("frontier    {}", output.paint(CYAN, &path.display().to_string())));
    }
    if output.json {
        return output.json(&found);
    }
    output.data(&view::text(&found, &recipe, devices, output.on_stdout()))
}

/// The profile, how it was fitted if it was, and the recipe.
fn load(arguments: &Plan, output: Output) -> Result<(Profile, Option<Fitted>, Config), Failure> {
    let Some(run) = &arguments.calibrate else {
        let name = arguments.profile.as_deref().unwrap_or(DEFAULT);
        let config = Config::load(&arguments.files, &arguments.overrides)?;
        return Ok((named_profile(name)?, None, config));
    };
    let directory = find_run(run)?;
    let files = if arguments.files.is_empty() {
        vec![directory.join("config.toml")]
    } else {
        arguments.files.clone()
    };
    let config = Config::load(&files, &arguments.overrides)?;
    let observed = observe::run(&directory, arguments.stage.as_deref())?;
    let Calibration { profile, steps, rollout_error, train_error } =
        calibrate(&observed).map_err(Failure::failed)?;
    if let Some(path) = &arguments.save_profile {
        write(path, &profile.to_toml().map_err(Failure::failed)?)?;
        output.say(&format!("profile     {}", output.paint(CYAN, &path.display().to_string())));
    }
    Ok((profile, Some(Fitted { steps, rollout_error, train_error }), config))
}

fn named_profile(name: &str) -> Result<Profile, Failure> {
    if let Some(profile) = Profile::built_in(name) {
        return profile.map_err(Failure::failed);
    }
    let text = std::fs::read_to_string(name).map_err(|e| {
        let known: Vec<&str> = Profile::names().collect();
        Failure::usage(format!(
            "there is no hardware profile `{name}`: {e}\nhint: take one of {}, or a TOML file",
            known.join(", ")
        ))
    })?;
    Profile::parse(&text).map_err(|e| Failure::usage(format!("{name}: {e}")))
}

fn own_split(rollout: u32, devices: u32, profile: &Profile) -> Result<Split, Failure> {
    if rollout < profile.devices_per_replica || rollout >= devices {
        return Err(Failure::usage(format!(
            "{rollout} of {devices} devices cannot generate while the others train\nhint: a replica has {}, and at least \
             one device trains",
            profile.devices_per_replica
        )));
    }
    Ok(Split::Separate { rollout, train: devices - rollout })
}

/// The recipe as it is, on the split that suits it best.
fn configured(recipe: &Recipe, profile: &Profile, choices: &[Choice], steps: u64) -> Result<Choice, Failure> {
    let max_staleness = recipe.scheduler.max_staleness;
    let best = choices
        .iter()
        .filter(|c| c.max_staleness == max_staleness)
        .reduce(|a, b| if b.report.steps_per_hour > a.report.steps_per_hour { b } else { a });
    let split = best.map_or(Split::Shared { devices: profile.devices }, |c| c.split);
    let report: Report =
        simulate(&recipe.scenario(profile, split, max_staleness, steps)).map_err(Failure::failed)?;
    Ok(Choice { split, max_staleness, report })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}
