//! Functions of a run, loaded once before its first step: one that cannot be used ends the run before it has cost anything.

use std::path::PathBuf;
use std::sync::Arc;

use rloom_config::{Config, EvalSettings};
use rloom_env::EnvironmentSettings;
use rloom_function::{Host, function_file};
use rloom_learn::{MethodError, MethodFunctions};
use rloom_reward::{RewardSettings, Scorer};

use crate::RunError;
use crate::assembly::{EmbeddedJudges, FunctionHosts, eval_prefix};

/// Loads the functions of the stages from `first` on, and of the evaluation if they evaluate, on the machines of `hosts` or
/// on this one.
///
/// Returns the rewards that run programs, each with the tier of its sandbox.
pub(crate) fn check(
    config: &Config,
    first: usize,
    hosts: Option<&FunctionHosts>,
    judges: &EmbeddedJudges,
) -> Result<Vec<(String, &'static str)>, RunError> {
    let mut sandboxes = Vec::new();
    let mut rewards: Vec<&RewardSettings> = Vec::new();
    let mut environments: Vec<&EnvironmentSettings> = Vec::new();
    let sets: Vec<_> = config.eval.iter().flat_map(EvalSettings::all_sets).collect();
    for (index, stage) in config.stages.iter().enumerate().skip(first) {
        let sets = sets.iter().filter(|_| stage.samples_held_out());
        let own = (stage.rollout.as_ref().map(|rollout| &rollout.reward), &stage.environment, String::new());
        let of_eval = sets.map(|(name, set)| (Some(&set.reward), &set.environment, eval_prefix(*name)));
        for (reward, environment, prefix) in std::iter::once(own).chain(of_eval) {
            let host_of = |role: &str| hosts?.of(index, &format!("{prefix}{role}"));
            if let Some(reward) = reward.filter(|reward| !rewards.contains(reward)) {
                rewards.push(reward);
                sandboxes.extend(check_reward(reward, &host_of, judges)?);
            }
            if !environments.contains(&environment) {
                environments.push(environment);
                environment.check(host_of("environment"))?;
            }
        }
    }
    for stage in config.stages.iter().skip(first) {
        let functions = MethodFunctions::of(&stage.algorithm).map_err(MethodError::from)?;
        functions.check(&stage.algorithm)?;
    }
    Ok(sandboxes)
}

/// Loads the functions of an evaluation outside of a run.
pub(crate) fn check_evaluation(eval: &EvalSettings, judges: &EmbeddedJudges) -> Result<(), RunError> {
    for (_, set) in eval.all_sets() {
        check_reward(&set.reward, &|_| None, judges)?;
        set.environment.check(None)?;
    }
    Ok(())
}

/// The files of the Python functions and of the judges' prompts of a configuration, each once. A missing one is an error of what
/// is loaded from it.
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
        for set in &eval.sets {
            names.extend(set.reward.iter().flat_map(RewardSettings::python_functions));
            names.extend(set.environment.iter().filter_map(EnvironmentSettings::python_function));
        }
    }
    let rollouts = config.stages.iter().flat_map(|stage| &stage.rollout);
    let of_sets = config.eval.iter().flat_map(|eval| &eval.sets).filter_map(|set| set.reward.as_ref());
    let of_eval = config.eval.iter().map(|eval| &eval.reward).chain(of_sets);
    let prompts = rollouts.map(|rollout| &rollout.reward).chain(of_eval).flat_map(RewardSettings::files);
    let mut files = Vec::new();
    for file in names.into_iter().filter_map(function_file).chain(prompts) {
        if file.is_file() && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

fn check_reward(
    reward: &RewardSettings,
    host_of: &dyn Fn(&str) -> Option<Arc<dyn Host>>,
    judges: &EmbeddedJudges,
) -> Result<Vec<(String, &'static str)>, RunError> {
    if !reward.needs_machine() {
        return Ok(Vec::new());
    }
    let scorer = Scorer::new(reward, 0, 0)?;
    scorer.place(&|component| host_of(&format!("reward {component}")));
    scorer.open_models(judges)?;
    scorer.prepare()?;
    Ok(scorer.sandboxes().map(|(name, tier)| (name.to_owned(), tier)).collect())
}
