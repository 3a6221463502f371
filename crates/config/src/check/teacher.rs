//! `[stage.teacher]`, and its agreement with the method and the engines of its stage.

use rloom_engine::Backend;

use crate::compose::{Draft, StageDraft};
use crate::layered::suggest;
use crate::problem::{Code, Problem};
use crate::settings::Stage;
use crate::teacher::TeacherSettings;

pub(super) fn check(draft: &Draft, stages: &[Stage], problems: &mut Vec<Problem>) {
    for (place, (section, stage)) in draft.stages.iter().zip(stages).enumerate() {
        match &stage.teacher {
            Some(teacher) => {
                check_read(section, stage, problems);
                check_source(draft, place, teacher, problems);
                check_endpoint(section, stage, problems);
                check_engines(draft, section, stage, problems);
            }
            None if stage.algorithm.distillation.is_some() => problems.push(
                Problem::new(Code::MissingKey, format!("`{}` has no teacher", section.keys.table()))
                    .at(section.keys.origin_or_table("method"), "learns from the distribution of a teacher")
                    .hint("add `[stage.teacher]` with the `path` of a model, the name of an earlier `stage`, or the `url` of a server"),
            ),
            None => {}
        }
    }
}

/// A teacher is read by a distillation, and by a KL.
fn check_read(section: &StageDraft, stage: &Stage, problems: &mut Vec<Problem>) {
    let algorithm = &stage.algorithm;
    let reads_kl = algorithm.preference.is_none() && algorithm.needs_reference();
    if algorithm.distillation.is_some() || reads_kl {
        return;
    }
    let problem = Problem::new(Code::Unread, format!("nothing reads `{}`", section.keys.name("teacher")))
        .at(section.keys.origin_or_table("teacher"), "")
        .at_if_set(section.keys.origin("method"), format!("the method is {}", algorithm.method));
    problems.push(if algorithm.method.is_supervised() {
        problem
    } else {
        problem.hint(format!(
            "set `{}` above 0 to measure it to the teacher",
            section.keys.name("algorithm.kl.coef")
        ))
    });
}

/// One source, and an earlier stage if it is one.
fn check_source(draft: &Draft, place: usize, teacher: &TeacherSettings, problems: &mut Vec<Problem>) {
    let keys = &draft.stages[place].keys;
    let sources = [&teacher.path, &teacher.stage, &teacher.url].into_iter().flatten().count();
    if sources != 1 {
        let has = if sources == 0 { "no source" } else { "several sources" };
        problems.push(
            Problem::new(Code::Conflict, format!("`{}` has {has}", keys.name("teacher")))
                .at(keys.origin_or_table("teacher"), "")
                .hint("set one of `path`, `stage` and `url`"),
        );
        return;
    }
    let of_url = [("model", teacher.model.is_some()), ("timeout_seconds", teacher.timeout_seconds.is_some())];
    for (key, _) in of_url.into_iter().filter(|(_, is_set)| *is_set && teacher.url.is_none()) {
        let name = keys.name(&format!("teacher.{key}"));
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{name}`"))
                .at(keys.origin_or_table(&format!("teacher.{key}")), "the teacher is not behind a `url`"),
        );
    }
    if let Some(seconds) = teacher.timeout_seconds.filter(|s| !(*s > 0.0 && *s <= 31_536_000.0)) {
        let expected = "more than 0 and at most 31536000 (a year)";
        problems.push(super::values::out_of_range(keys, "teacher.timeout_seconds", seconds, expected));
    }
    let Some(name) = &teacher.stage else { return };
    let earlier: Vec<&str> = draft.stages[..place].iter().map(|s| s.keys.value.name.as_str()).collect();
    if earlier.contains(&name.as_str()) {
        return;
    }
    let message = format!("`{}`: there is no earlier stage \"{name}\"", keys.name("teacher.stage"));
    let problem = Problem::new(Code::UnknownStage, message)
        .at(keys.origin_or_table("teacher.stage"), suggest::did_you_mean(name, &earlier));
    problems.push(if earlier.is_empty() {
        problem.hint("the first stage can only have the `path` or the `url` of a teacher")
    } else {
        problem.hint(format!("earlier stages are {}", suggest::list(&earlier)))
    });
}

/// Of a teacher behind an address the most probable tokens are known, at the temperature 1.
fn check_endpoint(section: &StageDraft, stage: &Stage, problems: &mut Vec<Problem>) {
    if stage.teacher.as_ref().is_none_or(|teacher| teacher.url.is_none()) {
        return;
    }
    let keys = &section.keys;
    let url = keys.origin_or_table("teacher.url");
    let Some(distillation) = &stage.algorithm.distillation else {
        problems.push(
            Problem::new(Code::Conflict, "a KL is not measured to a server")
                .at(url, "a server")
                .at_if_set(keys.origin("method"), format!("the method is {}", stage.algorithm.method))
                .hint("set the `path` of the teacher instead of its `url`"),
        );
        return;
    };
    if distillation.top_k().is_none() {
        problems.push(
            Problem::new(Code::Conflict, "a server tells its most probable tokens alone")
                .at(url, "a server")
                .at_if_set(keys.origin("algorithm.distillation"), "compares the whole vocabulary")
                .hint(format!("set `{} = 16`", keys.name("algorithm.distillation.top_k"))),
        );
    }
    if distillation.temperature() != 1.0 {
        problems.push(
            Problem::new(Code::Conflict, "log-probabilities of a server have the temperature 1")
                .at(url, "a server")
                .at_if_set(keys.origin("algorithm.distillation.temperature"), "another temperature")
                .hint(format!("remove `{}`", keys.name("algorithm.distillation.temperature"))),
        );
    }
}

/// The embedded engine and PyTorch's own ranks compare a student with its teacher, and there is one student.
fn check_engines(draft: &Draft, section: &StageDraft, stage: &Stage, problems: &mut Vec<Problem>) {
    let teacher = section.keys.origin_or_table("teacher");
    if matches!(stage.trainer.backend, Backend::Deepspeed(_) | Backend::Megatron(_)) {
        problems.push(
            Problem::new(
                Code::Conflict,
                "a student is compared with its teacher by the embedded engine or PyTorch's own ranks",
            )
            .at(teacher, "a teacher")
            .at_if_set(section.trainer.origin("backend"), "")
            .hint(format!("set `{} = \"torch\"` for this stage", section.trainer.name("backend"))),
        );
    }
    if let Some((_, policy)) = draft.policies.first_key_value().filter(|_| stage.rollout.is_some()) {
        problems.push(
            Problem::new(Code::Conflict, "a teacher has one student")
                .at(teacher, "a teacher")
                .at(policy.node.origin, "another policy")
                .hint("train the policies without a teacher"),
        );
    }
}
