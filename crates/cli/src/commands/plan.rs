//! `rloom plan`: simulates a recipe in virtual time on any hardware.

mod error;
mod observe;
mod recipe;
mod svg;
mod view;

use std::path::Path;

use rloom_config::Config;
use rloom_sim::{
    Calibration, Candidate, Profile, Recommendation, Report, Split, calibrate, frontier, recommend, simulate,
};
use serde::Serialize;

use super::train::find_run;
use crate::arguments::Plan;
use crate::failure::Failure;
use crate::output::{CYAN, Output};
use error::PlanError;
use recipe::Recipe;

/// Staleness bounds simulated in addition to the recipe's.
const BOUNDS: [u64; 5] = [0, 1, 2, 4, 8];
/// Maximum number of ways to divide the devices.
const SPLITS: u32 = 7;
/// Samples to simulate per point of the frontier.
const SWEEP_SAMPLES: u64 = 30_000;
/// Samples to simulate of the recipe as configured.
const SAMPLES: u64 = 300_000;
/// Fraction of the highest speed that may be given up for fresher data.
const TOLERANCE: f64 = 0.02;
/// Largest staleness bound recommended: AReaL (arXiv 2505.24298) reports no loss of accuracy up to it.
const STALENESS_LIMIT: u64 = 4;
/// Profile used if none is named.
const DEFAULT: &str = "laptop-cpu";

/// Output of the command.
#[derive(Debug, Serialize)]
struct Findings<'a> {
    stage: &'a str,
    method: &'a str,
    profile: &'a Profile,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<FitQuality>,
    /// The recipe as configured.
    configured: &'a Candidate,
    recommended: Option<Recommended<'a>>,
    frontier: &'a [Candidate],
}

#[derive(Debug, Clone, Copy, Serialize)]
struct FitQuality {
    steps: usize,
    rollout_error: f64,
    train_error: f64,
}

#[derive(Debug, Serialize)]
struct Recommended<'a> {
    #[serde(flatten)]
    point: &'a Candidate,
    #[serde(flatten)]
    recommendation: Recommendation,
}

pub(crate) fn run(arguments: &Plan, output: Output) -> Result<(), Failure> {
    let (profile, calibration, config) = load(arguments, output)?;
    let devices = arguments.devices.unwrap_or(profile.devices);
    let recipe = Recipe::new(&config, arguments, &profile)?;
    let splits = match arguments.rollout_devices {
        Some(rollout) => vec![separate_split(rollout, devices, &profile)?],
        None => profile.splits(devices, SPLITS),
    };
    let mut bounds = BOUNDS.to_vec();
    bounds.push(recipe.schedule.max_staleness);
    bounds.sort_unstable();
    bounds.dedup();
    bounds.retain(|&eta| recipe.allows(eta));
    let steps = |samples: u64| {
        let fit = (samples / recipe.samples_per_step()).max(12);
        arguments.steps.unwrap_or(recipe.steps.min(fit)).max(1)
    };
    let sweep_steps = steps(SWEEP_SAMPLES);
    let candidates =
        frontier(&splits, &bounds, |split, eta| recipe.scenario(&profile, split, eta, sweep_steps))
            .map_err(PlanError::Sim)?;
    let configured = configured(&recipe, &profile, &candidates, steps(SAMPLES))?;
    let recommendation = recommend(&candidates, TOLERANCE, STALENESS_LIMIT);
    let findings = Findings {
        stage: &recipe.stage,
        method: &recipe.method,
        profile: &profile,
        calibration,
        configured: &configured,
        recommended: recommendation
            .map(|r| Recommended { point: &candidates[r.candidate], recommendation: r }),
        frontier: if arguments.sweep { &candidates } else { &[] },
    };
    if let Some(path) = &arguments.svg {
        write(path, &svg::draw(&candidates, recommendation.map(|r| r.candidate)))?;
        output.info(&format!("chart       {}", output.paint(CYAN, &path.display().to_string())));
    }
    if output.json {
        return output.json(&findings);
    }
    output.data(&view::text(&findings, &recipe, devices, output.on_stdout()))
}

/// Loads the recipe and the profile, fitting the profile to a run if requested.
fn load(arguments: &Plan, output: Output) -> Result<(Profile, Option<FitQuality>, Config), Failure> {
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
        calibrate(&observed).map_err(PlanError::Sim)?;
    if let Some(path) = &arguments.save_profile {
        write(path, &profile.to_toml().map_err(PlanError::Serialize)?)?;
        output.info(&format!("profile     {}", output.paint(CYAN, &path.display().to_string())));
    }
    Ok((profile, Some(FitQuality { steps, rollout_error, train_error }), config))
}

fn named_profile(name: &str) -> Result<Profile, PlanError> {
    let profile = match Profile::built_in(name) {
        Some(profile) => profile,
        None => match std::fs::read_to_string(name) {
            Ok(text) => Profile::parse(&text),
            Err(error) => return Err(PlanError::UnknownProfile { name: name.to_owned(), error }),
        },
    };
    profile.map_err(|error| PlanError::Profile { name: name.to_owned(), error })
}

fn separate_split(rollout: u32, devices: u32, profile: &Profile) -> Result<Split, PlanError> {
    let per_replica = profile.devices_per_replica;
    if rollout < per_replica || rollout >= devices {
        return Err(PlanError::RolloutDevices { rollout, devices, per_replica });
    }
    Ok(Split::Separate { rollout, train: devices - rollout })
}

/// Simulates the recipe as configured, on its fastest split.
fn configured(
    recipe: &Recipe,
    profile: &Profile,
    candidates: &[Candidate],
    steps: u64,
) -> Result<Candidate, PlanError> {
    let max_staleness = recipe.schedule.max_staleness;
    let best = candidates
        .iter()
        .filter(|c| c.max_staleness == max_staleness)
        .reduce(|a, b| if b.report.steps_per_hour > a.report.steps_per_hour { b } else { a });
    let split = best.map_or(Split::Shared { devices: profile.devices }, |c| c.split);
    let report: Report = simulate(&recipe.scenario(profile, split, max_staleness, steps))?;
    Ok(Candidate { split, max_staleness, report })
}

fn write(path: &Path, text: &str) -> Result<(), PlanError> {
    std::fs::write(path, text).map_err(|error| PlanError::Write { path: path.to_owned(), error })
}
