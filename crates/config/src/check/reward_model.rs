//! Stages that train a reward model, and rewards by them.

use rloom_algo::Method;
use rloom_engine::Backend;
use rloom_reward::{Kind, RewardSettings};

use crate::compose::{Draft, StageDraft};
use crate::layered::source::Origin;
use crate::problem::{Code, Problem};
use crate::settings::{Stage, Start};

pub(super) fn check(draft: &Draft, stages: &[Stage], problems: &mut Vec<Problem>) {
    for (section, stage) in draft.stages.iter().zip(stages) {
        if let Start::Stage(from) = stage.start
            && stages[from].trains_reward_model()
        {
            check_start(draft, section, stages, from, problems);
        }
        if stage.trains_reward_model() {
            check_trainer(section, stage, problems);
        }
    }
    for (place, (section, stage)) in draft.stages.iter().zip(stages).enumerate() {
        if let Some((rollout, draft)) = stage.rollout.as_ref().zip(section.rollout.as_ref()) {
            let origin = draft.reward.origin_or_table("components");
            check_reward(&rollout.reward, &stages[..place], origin, problems);
        }
    }
    if let Some(eval) = &draft.eval {
        // Evaluations are the same in every stage, also before the model is trained.
        check_reward(&eval.reward.value, &[], eval.reward.origin_or_table("components"), problems);
        for set in &eval.keys.value.sets {
            let origin = eval.keys.origin_or_table("sets");
            set.reward.iter().for_each(|reward| check_reward(reward, &[], origin, problems));
        }
    }
}

/// A reward by a stage's model needs an earlier stage that trains one.
fn check_reward(reward: &RewardSettings, earlier: &[Stage], origin: Origin, problems: &mut Vec<Problem>) {
    for component in &reward.components {
        let Kind::RewardModel(model) = &component.kind else { continue };
        let Some(name) = model.stage() else { continue };
        let problem = match earlier.iter().find(|stage| stage.name == name && stage.trains_reward_model()) {
            None => {
                let trained: Vec<String> = earlier
                    .iter()
                    .filter(|stage| stage.trains_reward_model())
                    .map(|stage| format!("`stage:{}`", stage.name))
                    .collect();
                let hint = match trained.as_slice() {
                    [] => "name a folder, or train the model in an earlier stage with `method = \"reward_model\"`"
                        .to_owned(),
                    trained => format!("use {}", trained.join(" or ")),
                };
                let message = format!(
                    "component `{}`: no earlier stage `{name}` trains a reward model",
                    component.name
                );
                Problem::new(Code::UnknownStage, message).hint(hint)
            }
            Some(stage) => {
                let judges_steps = stage.algorithm.method == Method::Prm;
                if judges_steps == model.steps.is_some() {
                    continue;
                }
                let (what, hint) = if judges_steps {
                    ("steps", "add `steps = { reduce = \"min\" }` to the component")
                } else {
                    ("completions", "remove `steps` from the component")
                };
                let message =
                    format!("component `{}`: the model of stage `{name}` judges {what}", component.name);
                Problem::new(Code::Conflict, message).hint(hint)
            }
        };
        problems.push(problem.at(origin, ""));
    }
}

/// A reward model has no language head to go on from.
fn check_start(
    draft: &Draft,
    section: &StageDraft,
    stages: &[Stage],
    from: usize,
    problems: &mut Vec<Problem>,
) {
    let name = &stages[from].name;
    let policies = stages[..from].iter().rev().find(|stage| !stage.trains_reward_model());
    let start = policies.map_or("model", |stage| &stage.name);
    problems.push(
        Problem::new(
            Code::Conflict,
            format!("stage `{}` starts from the reward model of `{name}`", section.keys.value.name),
        )
        .at(section.keys.origin_or_table("from"), "the default is the previous stage")
        .at(
            draft.stages[from].keys.origin_or_table("method"),
            "trains a reward model, which has no language head",
        )
        .hint(format!("set `{} = \"{start}\"`", section.keys.name("from"))),
    );
}

fn check_trainer(section: &StageDraft, stage: &Stage, problems: &mut Vec<Problem>) {
    let method = stage.algorithm.method;
    if matches!(stage.trainer.backend, Backend::Deepspeed(_) | Backend::Megatron(_)) {
        problems.push(
            Problem::new(
                Code::Conflict,
                "reward models are trained by the embedded engine or PyTorch's own ranks",
            )
            .at(section.trainer.origin_or_table("backend"), "")
            .at_if_set(section.keys.origin("method"), format!("the method is {method}"))
            .hint(format!("set `{} = \"torch\"` for this stage", section.trainer.name("backend"))),
        );
    }
}
