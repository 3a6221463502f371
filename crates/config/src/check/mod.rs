//! Checks across settings: those that contradict each other, and those that have no effect.

mod cluster;
mod domains;
mod environment;
mod eval;
mod eval_tables;
mod lora;
mod model;
mod policies;
mod reward_model;
mod run;
mod schedule;
mod shared;
mod stage;
mod teacher;
mod values;

use crate::compose::Draft;
use crate::problem::Problem;
use crate::settings::Config;

/// Checks a draft and returns its configuration; `None` if there are problems.
pub(crate) fn check(draft: &Draft, default_name: &str, problems: &mut Vec<Problem>) -> Option<Config> {
    let before = problems.len();
    let run = run::check(&draft.run, default_name, problems);
    let stages = stage::check_all(draft, problems);
    shared::check(draft, problems);
    if let Some(stages) = &stages {
        lora::check(draft, stages, problems);
        reward_model::check(draft, stages, problems);
        teacher::check(draft, stages, problems);
    }
    let model = model::check(draft, problems);
    let cluster = draft.cluster.as_ref().and_then(|section| cluster::check(section, problems));
    let eval = draft.eval.as_ref().map(|eval| eval::check(eval, draft, problems));
    let policies = policies::check(draft, stages.as_deref().unwrap_or_default(), problems);
    if problems.len() > before {
        return None;
    }
    let (dtype, numeric_path) = (draft.model.value.dtype, draft.model.value.numeric_path);
    Some(Config { run, model: model?, dtype, numeric_path, cluster, policies, eval, stages: stages? })
}
