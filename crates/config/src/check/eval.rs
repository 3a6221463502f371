//! `[eval]`.

use rloom_env::EnvironmentSettings;

use super::run::invalid_name;
use super::{environment, eval_tables, values};
use crate::compose::{Draft, EvalDraft, StageDraft};
use crate::problem::{Code, Problem};
use crate::settings::EvalSettings;

pub(super) fn check(eval: &EvalDraft, draft: &Draft, problems: &mut Vec<Problem>) -> EvalSettings {
    let keys = &eval.keys;
    values::at_least(keys, "every", keys.value.every, 1, problems);
    values::at_least(keys, "tasks", keys.value.tasks, 1, problems);
    values::sampling(&eval.sampling, problems);
    values::data(&eval.data, problems);
    values::reward(&eval.reward, problems);
    values::engine(&eval.rollout, problems);
    environment::check(&eval.environment, &eval.data, Some(&eval.reward), problems);
    check_samples(eval, problems);
    eval_tables::check_rollout(eval, draft, problems);
    eval_tables::check_data(eval, draft, problems);
    check_verifier(eval, problems);
    if !eval.data.value.has_held_out() {
        problems.push(
            Problem::new(Code::Conflict, "there are no held-out tasks to evaluate")
                .at(keys.node.origin, "")
                .at(eval.data.origin_or_table("path"), "has no held-out split")
                .hint(format!(
                    "set `{}` to another file, or `{}` to hold out rows of this one",
                    eval.data.sibling_name("path", "eval_path"),
                    eval.data.sibling_name("path", "eval_rows")
                )),
        );
    }
    check_sets(eval, problems);
    if let Some(size) = eval.data.value.source.eval_size()
        && size < keys.value.tasks
    {
        problems.push(
            Problem::new(Code::Conflict, "there are fewer held-out tasks than `eval.tasks`")
                .at(keys.origin_or_table("tasks"), format!("{} tasks", keys.value.tasks))
                .at_if_set(eval.data.origin("eval_size"), format!("{size} held-out tasks"))
                .hint(format!("raise `{}`, or lower `eval.tasks`", eval.data.name("eval_size"))),
        );
    }
    let is_unread = |stage: &StageDraft| {
        stage.keys.value.eval_every == Some(0) || stage.keys.value.method.trains_reward_model()
    };
    if !draft.stages.is_empty() && draft.stages.iter().all(is_unread) {
        let reward_models = draft.stages.iter().any(|s| s.keys.value.method.trains_reward_model());
        let mut problem = Problem::new(Code::Unread, "nothing reads `eval`").at(
            keys.node.origin,
            if reward_models {
                "no stage samples held-out tasks: the loss of reward models is measured by `[validation]`"
            } else {
                "every stage sets `eval_every = 0`"
            },
        );
        for stage in &draft.stages {
            problem = problem.at_if_set(stage.keys.key_origin("eval_every"), "");
        }
        problems.push(problem);
    }
    EvalSettings {
        every: keys.value.every,
        tasks: keys.value.tasks,
        samples: keys.value.samples,
        sampling: eval.sampling.value.clone(),
        data: eval.data.value.clone(),
        environment: eval.environment.value.clone(),
        reward: eval.reward.value.clone(),
        rollout: eval.rollout.value.clone(),
        sets: keys.value.sets.clone(),
    }
}

/// `[[eval.sets]]`, whose tables are complete and have no layers.
fn check_sets(eval: &EvalDraft, problems: &mut Vec<Problem>) {
    let keys = &eval.keys;
    let mut refuse = |message: String| {
        problems.push(Problem::new(Code::Conflict, message).at(keys.origin_or_table("sets"), ""));
    };
    for (place, set) in keys.value.sets.iter().enumerate() {
        let name = &set.name;
        if let Some(reason) = invalid_name(name) {
            refuse(format!("`eval.sets`: the name {name:?} is not valid: {reason}"));
        }
        if keys.value.sets[..place].iter().any(|other| other.name == *name) {
            refuse(format!("`eval.sets`: two sets are named `{name}`"));
        }
        let tasks = set.tasks.unwrap_or(keys.value.tasks);
        if tasks == 0 {
            refuse(format!("`eval.sets`: `tasks` of `{name}` must be at least 1, but is 0"));
        }
        if let Some(size) = set.data.source.eval_size().filter(|size| *size < tasks) {
            refuse(format!("`eval.sets`: `{name}` has {size} held-out tasks, fewer than its {tasks} tasks"));
        }
        if let Err(error) = set.data.validate() {
            refuse(format!("`eval.sets`: data of `{name}`: {error}"));
        } else if !set.data.has_held_out() {
            refuse(format!(
                "`eval.sets`: the data of `{name}` has no held-out split: it needs `eval_path` or `eval_rows`"
            ));
        }
        if let Some(reward) = &set.reward {
            match reward.validate() {
                Err(error) => refuse(format!("`eval.sets`: reward of `{name}`: {error}")),
                Ok(()) if !reward.has_verifier() => {
                    refuse(format!("`eval.sets`: no component of the reward of `{name}` is a verifier"));
                }
                Ok(()) => {}
            }
        }
        if let Some(Err(error)) = set.environment.as_ref().map(EnvironmentSettings::validate) {
            refuse(format!("`eval.sets`: environment of `{name}`: {error}"));
        }
    }
}

fn check_verifier(eval: &EvalDraft, problems: &mut Vec<Problem>) {
    let components = &eval.reward.value.components;
    if components.iter().any(|c| c.kind.is_verifier()) {
        return;
    }
    let problem = Problem::new(Code::Conflict, "no component of the reward verifies held-out tasks")
        .at(eval.reward.origin_or_table("components"), "none of them is a verifier");
    problems.push(match components.iter().find(|c| c.kind.takes_solved_at()) {
        Some(function) => problem.hint(format!(
            "set `solved_at` in the component of kind `{}`: the reward from which on a task counts as solved",
            function.kind.name()
        )),
        None => problem.hint(format!(
            "add {} to the components; with `weight = 0` it does not change the reward",
            verifiers(eval)
        )),
    });
}

/// The verifiers that can judge the tasks.
fn verifiers(eval: &EvalDraft) -> String {
    let verifiers = match eval.data.value.source.verifiers() {
        [] if eval.environment.value.has_steps() => &["environment"],
        [] => ANY_TASK,
        own => own,
    };
    let one = if verifiers.len() == 1 { "the verifier" } else { "one of the verifiers" };
    let names: Vec<String> = verifiers.iter().map(|name| format!("`{name}`")).collect();
    format!("{one} {}", names.join(", "))
}

/// Verifiers for the rows of files.
const ANY_TASK: &[&str] = &["exact", "numeric", "math", "countdown", "code"];

fn check_samples(eval: &EvalDraft, problems: &mut Vec<Problem>) {
    let samples = eval.keys.value.samples;
    if samples > 0 && eval.sampling.value.is_greedy() {
        problems.push(
            Problem::new(Code::Conflict, "greedy decoding gives the same completion every time")
                .at(eval.sampling.origin_or_table("temperature"), "0 is greedy")
                .at(eval.keys.origin_or_table("samples"), format!("{samples} samples per task"))
                .hint("greedy accuracy is always measured; set the temperature above 0, or remove `samples`"),
        );
    }
    // `temperature = 0` without samples is redundant, but true. Greedy sampling reports its own keys without effect.
    let differs = !eval.sampling.value.is_greedy();
    let unread = [
        ("temperature", differs),
        ("top_k", differs),
        ("top_p", differs),
        ("min_p", differs),
        ("min_new_tokens", true),
    ];
    for (key, is_unread) in unread {
        if let Some(origin) = eval.sampling.key_origin(key).filter(|_| samples == 0 && is_unread) {
            problems.push(
                Problem::new(Code::Unread, format!("nothing reads `{}`", eval.sampling.name(key)))
                    .at(origin, "without samples, evaluation is greedy")
                    .hint("set `eval.samples` above 0 to draw samples as well"),
            );
        }
    }
}
