//! The order of bf16 products in a run: that of the machine on which it started, also where it is resumed or replayed.

use std::path::Path;

use rloom_config::{Config, Stage};
use rloom_model::{Dtype, NumericPath};
use rloom_ops::Ctx;
use rloom_store::checkpoint::{CheckpointState, Checkpoints};
use rloom_telemetry::{Event, EventLine};

use crate::{RunError, context};

/// True if a stage is trained or sampled by this process.
fn computes_here(config: &Config) -> bool {
    let samples = |stage: &Stage| stage.rollout.as_ref().is_some_and(|own| own.engine.embedded().is_some());
    config.stages.iter().any(|stage| !stage.trains_outside() || samples(stage))
}

/// The path that a new run records; fails if this processor does not have the one that is set.
pub(crate) fn of_new_run(config: &Config) -> Result<NumericPath, RunError> {
    let ctx = config.numeric_path.within(Ctx::serial())?;
    let records = config.dtype == Dtype::Bf16 && computes_here(config);
    Ok(if records { ctx.order().into() } else { config.numeric_path })
}

/// The path of the run in `directory`: the one in its configuration or, in older runs, in its newest checkpoint.
fn of_run(directory: &Path, config: &Config) -> NumericPath {
    if config.dtype != Dtype::Bf16 || config.numeric_path != NumericPath::Auto {
        return config.numeric_path;
    }
    let checkpoints = Checkpoints::open_for_reading(directory.join("checkpoints"));
    let list = checkpoints.list().map(|(list, _)| list).unwrap_or_default();
    let newest = list.iter().max_by(|(a, _), (b, _)| a.cmp(b));
    let state = newest.and_then(|(_, path)| CheckpointState::load(path).ok());
    state.map_or(NumericPath::Auto, |state| NumericPath::recorded(&state.numeric_path))
}

/// The context in which the run in `directory` trains and samples. Fails if this processor does not have the configured
/// path; an older run continues in this processor's.
pub(crate) fn run_context(directory: &Path, config: &Config) -> Result<Ctx, RunError> {
    let ctx = config.numeric_path.within(context(config.run.threads)?)?;
    Ok(of_run(directory, config).within(ctx.clone()).unwrap_or(ctx))
}

/// The path in which `version` of the stage at `index` of the recipe sampled, according to the starts among the events: a
/// resumed run may have changed it. `None` if they do not say.
pub(crate) fn of_version(
    config: &Config,
    events: &[&EventLine],
    index: usize,
    version: u64,
) -> Option<NumericPath> {
    let is_covered = |checkpoint: &str| {
        let (name, step) = checkpoint.rsplit_once("-step-")?;
        let stage = config.stages.iter().position(|stage| stage.name == name)?;
        Some((stage, step.parse().ok()?) <= (index, version))
    };
    let path = events.iter().rev().find_map(|line| match &line.event {
        Event::RunStarted { numeric_path, resumed_from, .. } => {
            let covers = resumed_from.as_deref().is_none_or(|name| is_covered(name).unwrap_or(false));
            covers.then(|| NumericPath::recorded(numeric_path))
        }
        _ => None,
    });
    path.filter(|path| path.order().is_some())
}

/// The context in which samples of the run in `directory` that were computed in `path`, or else in the run's, are computed
/// again; emulates what this processor does not have.
pub(crate) fn replay_context(
    directory: &Path,
    config: &Config,
    path: Option<NumericPath>,
) -> Result<Ctx, RunError> {
    let ctx = context(config.run.threads)?;
    Ok(match path.unwrap_or_else(|| of_run(directory, config)).order() {
        Some(order) => ctx.reproducing(order),
        None => ctx,
    })
}
