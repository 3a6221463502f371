//! `[eval.rollout]` and `[eval.data]`: keys that evaluation does not read.

use serde::Serialize;

use crate::compose::{Draft, EvalDraft};
use crate::problem::{Code, Problem};
use crate::resolve::{EVAL_DATA_UNREAD, EVAL_ROLLOUT_READ, reads_limit, table};
use crate::section::Section;

/// Stages that sample evaluate with the engine that they sample with. A supervised stage has an engine for its
/// evaluations alone.
pub(super) fn check_rollout(eval: &EvalDraft, draft: &Draft, problems: &mut Vec<Problem>) {
    let is_evaluated = |every: Option<u64>| every.is_none_or(|every| every > 0);
    let mut evaluated = draft.stages.iter().filter(|stage| {
        is_evaluated(stage.keys.value.eval_every) && !stage.keys.value.method.trains_reward_model()
    });
    let Some(sampling) = draft.stages.iter().rev().find_map(|stage| Some((stage, stage.rollout.as_ref()?)))
    else {
        return;
    };
    if evaluated.any(|stage| stage.rollout.is_none()) {
        return;
    }
    let (stage, rollout) = sampling;
    for (key, problem) in changed(&eval.rollout, &rollout.engine.value) {
        if EVAL_ROLLOUT_READ.contains(&key.as_str()) {
            continue;
        }
        let shared = stage.keys.value.name.as_str();
        problems.push(
            problem
                .at_if_set(
                    eval.rollout.key_origin(&key),
                    "stages that sample evaluate with their own rollout engine",
                )
                .hint(format!("set `rollout.{key}` for all stages, or `stage.{shared}.rollout.{key}`")),
        );
    }
}

/// Only the held-out split is evaluated.
pub(super) fn check_data(eval: &EvalDraft, draft: &Draft, problems: &mut Vec<Problem>) {
    let Some(last) = draft.stages.last() else { return };
    let (own, base) = (&eval.data.value, &last.data.value);
    let base = if own.source.name() == base.source.name() {
        base.clone()
    } else {
        own.source.with_defaults().into()
    };
    for (key, problem) in changed(&eval.data, &base) {
        let reason = if EVAL_DATA_UNREAD.contains(&key.as_str()) {
            "evaluation reads the held-out tasks alone"
        } else if key == "limit" && !reads_limit(own) {
            "bounds the rows of `path`; held-out tasks are read from `eval_path`"
        } else {
            continue;
        };
        let hint = if key == "size" {
            "set `eval.tasks`, or `eval.data.eval_size`".to_owned()
        } else {
            format!("set `data.{key}` for the stages, or remove it")
        };
        problems.push(problem.at_if_set(eval.data.key_origin(&key), reason).hint(hint));
    }
}

/// The keys of the section's own table whose values differ from those of `base`, each with a problem to complete. Equal
/// values are redundant, but true.
fn changed<T: Serialize>(section: &Section<T>, base: &T) -> Vec<(String, Problem)> {
    let (own, base) = (table(&section.value), table(base));
    let keys = section.own_keys().filter(|key| own.get(*key) != base.get(*key));
    let problem = |key: &str| Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(key)));
    keys.map(|key| (key.to_owned(), problem(key))).collect()
}
