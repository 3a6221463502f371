//! `[stage.trainer.lora]`, and its agreement with the model and with other stages.

use rloom_engine::LoraModule;

use crate::compose::{Draft, StageDraft};
use crate::policies::NEW_MODEL;
use crate::problem::{Code, Problem};
use crate::settings::{Stage, Start};

pub(super) fn check(draft: &Draft, stages: &[Stage], problems: &mut Vec<Problem>) {
    for (place, (section, stage)) in draft.stages.iter().zip(stages).enumerate() {
        match stage.start {
            Start::Stage(from) => check_start(draft, [place, from], stages, problems),
            Start::Model => check_base(draft, section, stage, problems),
        }
        if stage.trains_reward_model() {
            check_targets(section, stage, problems);
        }
    }
}

/// A stage continues the adapter that it starts from.
fn check_start(draft: &Draft, [place, from]: [usize; 2], stages: &[Stage], problems: &mut Vec<Problem>) {
    let Some(before) = &stages[from].trainer.lora else { return };
    let (section, source) = (&draft.stages[place], &draft.stages[from]);
    let message = match &stages[place].trainer.lora {
        Some(own) if own == before => return,
        Some(_) => "the stage continues an adapter of another shape",
        None => "the stage trains all weights, but starts from an adapter",
    };
    problems.push(
        Problem::new(Code::Conflict, message)
            .at(section.trainer.origin_or_table("lora"), "")
            .at(source.trainer.origin_or_table("lora"), "the adapter that it starts from")
            .hint(format!("give `{}` the settings of that stage", section.trainer.name("lora"))),
    );
}

/// An adapter is stored without its base, which has to be in a folder.
fn check_base(draft: &Draft, section: &StageDraft, stage: &Stage, problems: &mut Vec<Problem>) {
    let is_new = draft.model.value.new.is_some()
        || draft.policies.values().any(|policy| policy.value.model.as_deref() == Some(NEW_MODEL));
    if stage.trainer.lora.is_some() && is_new {
        problems.push(
            Problem::new(Code::Conflict, "an adapter needs a base with trained weights")
                .at(section.trainer.origin_or_table("lora"), "the base of this adapter is a new model")
                .at_if_set(draft.model.origin("new"), "random weights")
                .hint("train the new model in an earlier stage without `lora`, or set `model.path`"),
        );
    }
}

/// A reward model has no language head.
fn check_targets(section: &StageDraft, stage: &Stage, problems: &mut Vec<Problem>) {
    let Some(lora) = &stage.trainer.lora else { return };
    if lora.targets.contains(&LoraModule::LmHead) {
        problems.push(
            Problem::new(Code::Conflict, "a reward model has no language head to adapt")
                .at(section.trainer.origin_or_table("lora.targets"), "")
                .at_if_set(section.keys.origin("method"), format!("the method is {}", stage.algorithm.method))
                .hint("remove `lm_head`: the value head is trained as a whole"),
        );
    }
}
