//! `rloom plan`: simulates a recipe in virtual time on any hardware.

mod error;
mod limits;
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
use crate::plan::Memory;
use error::PlanError;
use limits::Limit;
use observe::Observed;
use recipe::Recipe;

/// Staleness bounds simulated in addition to the recipe's.
const BOUNDS: [u64; 5] = [0, 1, 2, 4, 8];
/// Maximum number of ways to divide the devices.
const SPLITS: u32 = 7;
/// Samples to simulate per point of the frontier.
const SWEEP_SAMPLES: u64 = 30_000;
/// Steps to simulate of the run that a profile was fitted to.
const REPLAY_STEPS: u64 = 300;
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
    /// Memory of this process by formula, if it trains the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    /// The recipe as configured.
    configured: &'a Candidate,
    recommended: Option<Recommended<'a>>,
    /// Changes of a stage on inference servers, the one that saves most first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<Limit>,
    frontier: &'a [Candidate],
}

#[derive(Debug, Clone, Copy, Serialize)]
struct FitQuality {
    steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout_error: Option<f64>,
    train_error: f64,
    /// The run itself, simulated with the fitted profile, if it was on inference servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<Replay>,
}

/// Comparison of a run on inference servers with its simulation.
#[derive(Debug, Clone, Copy, Serialize)]
struct Replay {
    replicas: u32,
    requests: usize,
    measured_seconds_per_step: f64,
    simulated_seconds_per_step: f64,
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
    let own = server_split(&recipe, arguments, &profile)?;
    let splits = match (own, arguments.rollout_devices) {
        (Some(own), _) => server_splits(own, arguments.sweep),
        (None, Some(rollout)) => vec![separate_split(rollout, devices, &profile)?],
        (None, None) => profile.splits(devices, SPLITS),
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
    let configured = configured(&recipe, &profile, own, &candidates, steps(SAMPLES))?;
    // The number of servers is not for the recommendation to choose: more are always faster.
    let eligible: Vec<Candidate> =
        candidates.iter().filter(|c| own.is_none_or(|own| c.split == own)).cloned().collect();
    let recommendation = recommend(&eligible, TOLERANCE, STALENESS_LIMIT);
    let limits = match own {
        Some(own) => limits::of(&recipe, &profile, own, sweep_steps).map_err(PlanError::Sim)?,
        None => Vec::new(),
    };
    let memory = crate::plan::Plan::memory_of(&config)?;
    let findings = Findings {
        memory: memory.into_iter().find(|(name, _)| *name == recipe.stage).map(|(_, memory)| memory),
        stage: &recipe.stage,
        method: &recipe.method,
        profile: &profile,
        calibration,
        configured: &configured,
        recommended: recommendation.map(|r| Recommended { point: &eligible[r.candidate], recommendation: r }),
        limits,
        frontier: if arguments.sweep { &candidates } else { &[] },
    };
    if let Some(path) = &arguments.svg {
        let recommended = recommendation
            .and_then(|r| candidates.iter().position(|candidate| *candidate == eligible[r.candidate]));
        write(path, &svg::draw(&candidates, recommended))?;
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
        calibrate(&observed.run).map_err(PlanError::Sim)?;
    let servers =
        if profile.has_servers() { Some(replay(&directory, arguments, &profile, &observed)?) } else { None };
    if let Some(path) = &arguments.save_profile {
        write(path, &profile.to_toml().map_err(PlanError::Serialize)?)?;
        output.info(&format!("profile     {}", output.paint(CYAN, &path.display().to_string())));
    }
    Ok((profile, Some(FitQuality { steps, rollout_error, train_error, servers }), config))
}

/// Simulates a run on inference servers as it was.
fn replay(
    directory: &Path,
    arguments: &Plan,
    profile: &Profile,
    observed: &Observed,
) -> Result<Replay, Failure> {
    let config = Config::load(&[directory.join("config.toml")], &[""; 0])?;
    let recipe = Recipe::new(&config, arguments, profile)?;
    let replicas = observed.run.servers;
    let split = recipe.split_of_servers(replicas);
    let report = simulate(&recipe.scenario(profile, split, recipe.schedule.max_staleness, REPLAY_STEPS))
        .map_err(PlanError::Sim)?;
    Ok(Replay {
        replicas,
        requests: observed.run.requests.len(),
        measured_seconds_per_step: observed.seconds_per_step,
        simulated_seconds_per_step: report.seconds_per_step,
    })
}

/// The servers of the recipe, if the profile was measured on servers.
fn server_split(recipe: &Recipe, arguments: &Plan, profile: &Profile) -> Result<Option<Split>, PlanError> {
    match (profile.has_servers(), recipe.servers) {
        (false, _) if arguments.replicas.is_some() => Err(PlanError::NoServers),
        (false, _) => Ok(None),
        (true, None) => Err(PlanError::EmbeddedRecipe),
        (true, Some(_)) if arguments.devices.is_some() || arguments.rollout_devices.is_some() => {
            Err(PlanError::DevicesOfServers)
        }
        (true, Some(replicas)) => Ok(Some(recipe.split_of_servers(replicas))),
    }
}

/// The servers of the recipe, and in a sweep also powers of two up to four times their number.
fn server_splits(own: Split, is_sweep: bool) -> Vec<Split> {
    let mut splits = vec![own];
    if let (Split::Separate { rollout, train }, true) = (own, is_sweep) {
        let powers = (0..=16).map(|power| 1 << power).filter(|&n| n <= 4 * rollout && n != rollout);
        splits.extend(powers.map(|rollout| Split::Separate { rollout, train }));
        splits.sort_unstable();
    }
    splits
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
    own: Option<Split>,
    candidates: &[Candidate],
    steps: u64,
) -> Result<Candidate, PlanError> {
    let max_staleness = recipe.schedule.max_staleness;
    let best = candidates
        .iter()
        .filter(|c| c.max_staleness == max_staleness)
        .reduce(|a, b| if b.report.steps_per_hour > a.report.steps_per_hour { b } else { a });
    let split = own.or(best.map(|c| c.split)).unwrap_or(Split::Shared { devices: profile.devices });
    let report: Report = simulate(&recipe.scenario(profile, split, max_staleness, steps))?;
    Ok(Candidate { split, max_staleness, report })
}

fn write(path: &Path, text: &str) -> Result<(), PlanError> {
    std::fs::write(path, text).map_err(|error| PlanError::Write { path: path.to_owned(), error })
}
