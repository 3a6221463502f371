//! Paths of a configuration, independent of the working directory.

use std::path::Path;

use rloom_config::{Config, EvalSettings, ModelSource};
use rloom_engine::ReferenceSettings;
use rloom_env::EnvironmentSettings;
use rloom_function::absolute_function;
use rloom_reward::RewardSettings;

use crate::{RunError, policies, teacher};

/// Makes the paths of data files, functions and a local model independent of the working directory.
pub(crate) fn with_absolute_paths(mut config: Config) -> Result<Config, RunError> {
    let stages = config.stages.iter_mut().map(|stage| &mut stage.data);
    for data in stages.chain(config.eval.iter_mut().flat_map(EvalSettings::all_data)) {
        data.make_absolute()?;
    }
    let of_stages = config.stages.iter_mut().filter_map(|stage| stage.rollout.as_mut());
    let rewards = of_stages.map(|rollout| &mut rollout.reward);
    for reward in rewards.chain(config.eval.as_mut().map(|eval| &mut eval.reward)) {
        reward.make_absolute();
    }
    for set in config.eval.iter_mut().flat_map(|eval| &mut eval.sets) {
        set.reward.iter_mut().for_each(RewardSettings::make_absolute);
        set.environment.iter_mut().for_each(EnvironmentSettings::make_absolute);
    }
    let of_stages = config.stages.iter_mut().map(|stage| &mut stage.environment);
    for environment in of_stages.chain(config.eval.as_mut().map(|eval| &mut eval.environment)) {
        environment.make_absolute();
    }
    for stage in &mut config.stages {
        stage.algorithm.rename_functions(absolute_function);
        stage.algorithm_settings.rename_functions(absolute_function);
    }
    if let Some(rollouts) = &mut config.run.rollouts
        && let Ok(path) = std::path::absolute(&*rollouts)
    {
        *rollouts = path;
    }
    if let ModelSource::Path(source) = &mut config.model {
        make_absolute(source);
    }
    policies::sources(&mut config).for_each(make_absolute);
    let references = config.stages.iter_mut().filter_map(|stage| stage.trainer.reference.as_mut());
    references.for_each(ReferenceSettings::make_absolute);
    teacher::sources(&mut config).for_each(make_absolute);
    Ok(config)
}

/// Makes the path of a local model independent of the working directory.
fn make_absolute(source: &mut String) {
    if Path::new(source).is_dir()
        && let Ok(path) = std::path::absolute(&*source)
    {
        *source = path.display().to_string();
    }
}
