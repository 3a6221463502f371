//! Checks across settings: those that contradict each other, and those that have no effect.

mod environment;
mod eval;
mod eval_tables;
mod model;
mod run;
mod schedule;
mod stage;
mod values;

use crate::compose::{Draft, SHARED};
use crate::problem::{Code, Problem};
use crate::settings::Config;

/// Checks a draft and returns its configuration; `None` if there are problems.
pub(crate) fn check(draft: &Draft, default_name: &str, problems: &mut Vec<Problem>) -> Option<Config> {
    let before = problems.len();
    let run = run::check(&draft.run, default_name, problems);
    let stages = stage::check_all(draft, problems);
    unread_shared(draft, problems);
    let model = model::check(draft, problems);
    let eval = draft.eval.as_ref().map(|eval| eval::check(eval, draft, problems));
    if problems.len() > before {
        return None;
    }
    let dtype = draft.model.value.dtype;
    Some(Config { run, model: model?, dtype, eval, stages: stages? })
}

/// Reports shared tables that neither a stage nor evaluation reads.
fn unread_shared(draft: &Draft, problems: &mut Vec<Problem>) {
    let samples = draft.stages.iter().any(|s| s.rollout.is_some());
    for name in SHARED {
        let read = match name {
            "sampling" | "schedule" => samples,
            "reward" | "rollout" => samples || draft.eval.is_some(),
            _ => true,
        };
        if let (false, Some(origin)) = (read, draft.root.key_origin(name)) {
            let problem = Problem::new(Code::Unread, format!("nothing reads `{name}`"))
                .at(origin, "no stage samples: all train on demonstrations");
            problems.push(if name == "sampling" && draft.eval.is_some() {
                problem.hint("the sampling of evaluation is set in `[eval.sampling]`")
            } else {
                problem
            });
        }
    }
}
