//! Functions of a run, loaded once before its first step: one that cannot be used ends the run before it has cost anything.

use rloom_config::{Config, EvalSettings};
use rloom_env::EnvironmentSettings;
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

fn check_reward(reward: &RewardSettings) -> Result<(), RunError> {
    if reward.calls_functions() {
        Scorer::new(reward, 0, 0)?.prepare()?;
    }
    Ok(())
}
