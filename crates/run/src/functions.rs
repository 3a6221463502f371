//! Functions of a run, loaded once before its first step: one that cannot be used ends the run before it has cost anything.

use std::path::PathBuf;

use rloom_config::{Config, EvalSettings};
use rloom_env::EnvironmentSettings;
use rloom_function::function_file;
use rloom_learn::{MethodError, MethodFunctions};
use rloom_reward::{RewardSettings, Scorer};

use crate::RunError;

/// Loads the functions of the stages from `first` on, and of the evaluation if they evaluate.
pub(crate) fn check(config: &Config, first: usize) -> Result<(), RunError> {
    let stages = &config.stages[first.min(config.stages.len())..];
    let of_stages = stages.iter().filter_map(|stage| stage.rollout.as_ref()).map(|rollout| &rollout.reward);
    let eval = config.eval.as_ref().filter(|_| stages.iter().any(|stage| stage.eval_every > 0));
    let mut checked: Vec<&RewardSettings> = Vec::new();
    for reward in of_stages.chain(eval.map(|eval| &eval.reward)) {
        if !checked.contains(&reward) {
            checked.push(reward);
            check_reward(reward)?;
        }
    }
    let mut checked: Vec<&EnvironmentSettings> = Vec::new();
    let of_stages = stages.iter().map(|stage| &stage.environment);
    for environment in of_stages.chain(eval.map(|eval| &eval.environment)) {
        if !checked.contains(&environment) {
            checked.push(environment);
            environment.check()?;
        }
    }
    for stage in stages {
        let functions = MethodFunctions::of(&stage.algorithm).map_err(MethodError::from)?;
        functions.check(&stage.algorithm)?;
    }
    Ok(())
}

/// Loads the functions of an evaluation outside of a run.
pub(crate) fn check_evaluation(eval: &EvalSettings) -> Result<(), RunError> {
    check_reward(&eval.reward)?;
    Ok(eval.environment.check()?)
}

/// The files of the Python functions of a configuration, each once. A missing one is an error of the function that is
/// loaded from it.
pub(crate) fn files(config: &Config) -> Vec<PathBuf> {
    let mut names: Vec<&str> = Vec::new();
    for stage in &config.stages {
        names.extend(stage.rollout.iter().flat_map(|rollout| rollout.reward.python_functions()));
        names.extend(stage.environment.python_function());
        for function in stage.algorithm.functions() {
            names.push(function.as_str());
        }
    }
    if let Some(eval) = &config.eval {
        names.extend(eval.reward.python_functions());
        names.extend(eval.environment.python_function());
    }
    let mut files = Vec::new();
    for file in names.into_iter().filter_map(function_file) {
        if file.is_file() && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

fn check_reward(reward: &RewardSettings) -> Result<(), RunError> {
    if reward.calls_functions() {
        Scorer::new(reward, 0, 0)?.prepare()?;
    }
    Ok(())
}
