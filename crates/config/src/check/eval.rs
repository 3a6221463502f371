//! `[eval]`.

use rloom_data::Source;

use super::{environment, values};
use crate::compose::{Draft, EvalDraft};
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
    if !eval.reward.value.components.iter().any(|c| c.kind.is_verifier()) {
        problems.push(
            Problem::new(Code::Conflict, "nothing says whether a held-out task is solved")
                .at(eval.reward.place("components"), "none of these is a verifier")
                .hint("verifiers are `exact`, `numeric`, `math`, `countdown` and `environment`; one of weight 0 judges and does not reward"),
        );
    }
    if !eval.data.value.has_held_out() {
        problems.push(
            Problem::new(Code::Conflict, "there are no held-out tasks to evaluate")
                .at(keys.node.origin, "")
                .at(eval.data.place("path"), "has no held-out split")
                .hint(format!(
                    "set `{}` to a file of its own, or `{}` to hold rows out",
                    eval.data.beside("path", "eval_path"),
                    eval.data.beside("path", "eval_rows")
                )),
        );
    }
    let size = match &eval.data.value.source {
        Source::Files(_) => None,
        Source::Arithmetic(s) => s.eval_size,
        Source::Countdown(s) => s.eval_size,
        Source::Guess(s) => s.eval_size,
        Source::Sorting(s) => s.eval_size,
    };
    if let Some(size) = size
        && size < keys.value.tasks
    {
        problems.push(
            Problem::new(Code::Conflict, "more tasks are evaluated than are held out")
                .at(keys.place("tasks"), format!("{} tasks", keys.value.tasks))
                .at_written(eval.data.origin("eval_size"), format!("{size} held-out tasks"))
                .hint(format!("raise `{}`, or lower `eval.tasks`", eval.data.name("eval_size"))),
        );
    }
    if !draft.stages.is_empty() && draft.stages.iter().all(|s| s.keys.value.eval_every == Some(0)) {
        let mut problem = Problem::new(Code::Unread, "nothing reads `eval`")
            .at(keys.node.origin, "every stage says `eval_every = 0`");
        for stage in &draft.stages {
            problem = problem.at_written(stage.keys.key_origin("eval_every"), "");
        }
        problems.push(problem);
    }
    EvalSettings {
        every: keys.value.every,
        tasks: keys.value.tasks,
        samples: keys.value.samples,
        sampling: eval.sampling.value.clone(),
        data: eval.data.value.clone(),
        environment: eval.environment.value,
        reward: eval.reward.value.clone(),
        rollout: eval.rollout.value.clone(),
    }
}

fn check_samples(eval: &EvalDraft, problems: &mut Vec<Problem>) {
    let samples = eval.keys.value.samples;
    if samples > 0 && eval.sampling.value.is_greedy() {
        problems.push(
            Problem::new(Code::Conflict, "greedy decoding gives the same completion every time")
                .at(eval.sampling.place("temperature"), "0 is greedy")
                .at(eval.keys.place("samples"), format!("{samples} samples of each task"))
                .hint("greedy accuracy is measured in any case; set the temperature above 0, or leave `samples` out"),
        );
    }
    // `temperature = 0` without samples says what is done anyway.
    let unread = [("temperature", !eval.sampling.value.is_greedy()), ("min_new_tokens", true)];
    for (key, differs) in unread {
        if let Some(origin) = eval.sampling.key_origin(key).filter(|_| samples == 0 && differs) {
            problems.push(
                Problem::new(Code::Unread, format!("nothing reads `{}`", eval.sampling.name(key)))
                    .at(origin, "without samples, evaluation is greedy")
                    .hint("set `eval.samples` to draw samples, too"),
            );
        }
    }
}
