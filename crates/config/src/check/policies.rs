//! `[policies]`: the policies besides the main one, and their agreement with the stages.

use std::collections::BTreeMap;

use rloom_env::AgentSpec;

use super::run::{bad_policy_name, invalid_name};
use super::values::{invalid, out_of_range};
use crate::compose::{Draft, StageDraft};
use crate::layered::suggest;
use crate::policies::{MAIN_POLICY, NEW_MODEL, PolicySettings};
use crate::problem::{Code, Problem};
use crate::section::Section;
use crate::settings::Stage;

/// Most versions in a league.
const MAX_LEAGUE: u32 = 16;

pub(super) fn check(
    draft: &Draft,
    stages: &[Stage],
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, PolicySettings> {
    for (name, section) in &draft.policies {
        check_one(draft, name, section, problems);
    }
    if let Some((_, first)) = draft.policies.first_key_value() {
        if draft.stages.iter().all(|stage| stage.rollout.is_none()) {
            problems.push(
                Problem::new(Code::Unread, "nothing reads `policies`")
                    .at(first.node.origin, "no stage samples: all train on demonstrations"),
            );
        }
        for (stage, resolved) in draft.stages.iter().zip(stages) {
            check_stage(first, stage, resolved, problems);
            check_rates(draft, stage, problems);
        }
        if draft.run.value.rollouts.is_some() {
            problems.push(
                Problem::new(Code::Conflict, "recorded rollouts are trained with one policy")
                    .at(first.node.origin, "another policy")
                    .at_if_set(draft.run.origin("rollouts"), "")
                    .hint(format!("remove `{}`", draft.run.name("rollouts"))),
            );
        }
    }
    check_agents(draft, problems);
    draft.policies.iter().map(|(name, section)| (name.clone(), section.value.clone())).collect()
}

fn check_one(draft: &Draft, name: &str, section: &Section<PolicySettings>, problems: &mut Vec<Problem>) {
    let settings = &section.value;
    if let Some(reason) = invalid_name(name) {
        problems.push(bad_policy_name(section, name, reason));
    } else if name == MAIN_POLICY {
        problems.push(bad_policy_name(
            section,
            name,
            "that is the policy of `[model]` and `[trainer]`, which every run has",
        ));
    }
    if settings.model.as_deref() == Some(NEW_MODEL) && draft.model.value.new.is_none() {
        problems.push(
            Problem::new(Code::Conflict, format!("`{}` has no architecture", section.name("model")))
                .at(section.origin_or_table("model"), "a model of `[model.new]` with other random weights")
                .at(draft.model.node.origin, "has no `new`; a model may also be a folder or on the hub"),
        );
    }
    check_trainer(section, problems);
    check_league(draft, name, section, problems);
}

/// Agents name policies of the recipe, and each of these is named by an agent of a stage that samples.
fn check_agents(draft: &Draft, problems: &mut Vec<Problem>) {
    let mut known: Vec<&str> = draft.policies.keys().map(String::as_str).collect();
    known.insert(0, MAIN_POLICY);
    let sampling = draft.stages.iter().filter(|stage| stage.rollout.is_some());
    let sampling: Vec<_> = sampling.map(|stage| &stage.environment).collect();
    let eval = draft.eval.as_ref().map(|eval| &eval.environment);
    let mut reported = Vec::new();
    for environment in sampling.iter().copied().chain(eval) {
        for AgentSpec { name, policy } in environment.value.agents() {
            if known.contains(&policy.as_str()) || reported.contains(&policy) {
                continue;
            }
            let near = suggest::nearest(&policy, &known).map(|near| format!("did you mean \"{near}\"? "));
            let message =
                format!("agent `{name}` is played by policy \"{policy}\", which `[policies]` does not have");
            let label = format!("{}known are {}", near.unwrap_or_default(), suggest::list(&known));
            let origin = environment.origin_or_table(&format!("agents.{name}.policy"));
            problems.push(Problem::new(Code::UnknownName, message).at(origin, label));
            reported.push(policy);
        }
    }
    let played: Vec<String> = sampling
        .iter()
        .flat_map(|environment| environment.value.agents())
        .map(|agent| agent.policy)
        .collect();
    if sampling.is_empty() {
        return;
    }
    for (name, section) in draft.policies.iter().filter(|(name, _)| !played.contains(name)) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `policies.{name}`"))
                .at(section.node.origin, "no agent of an environment names it"),
        );
    }
}

fn check_trainer(section: &Section<PolicySettings>, problems: &mut Vec<Problem>) {
    let settings = &section.value;
    if let (false, Some(origin)) = (settings.is_trained(), section.key_origin("trainer")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("trainer")))
                .at(origin, "")
                .at_if_set(section.origin("frozen"), "not trained")
                .at_if_set(section.origin("league"), "not trained"),
        );
    }
    let trainer = settings.trainer;
    if let Some(rate) = trainer.learning_rate.filter(|rate| !(*rate > 0.0 && rate.is_finite())) {
        problems.push(out_of_range(section, "trainer.learning_rate", rate, "more than 0"));
    }
    for (key, value) in
        [("trainer.weight_decay", trainer.weight_decay), ("trainer.max_grad_norm", trainer.max_grad_norm)]
    {
        if let Some(value) = value.filter(|value| !(*value >= 0.0 && value.is_finite())) {
            problems.push(out_of_range(section, key, value, "0 or more"));
        }
    }
}

fn check_league(draft: &Draft, name: &str, section: &Section<PolicySettings>, problems: &mut Vec<Problem>) {
    let Some(league) = &section.value.league else { return };
    for key in ["frozen", "model"] {
        if let Some(origin) = section.key_origin(key) {
            problems.push(
                Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(key)))
                    .at(origin, "")
                    .at_if_set(
                        section.origin("league"),
                        "the weights are earlier versions of another policy",
                    ),
            );
        }
    }
    if league.every == 0 {
        problems.push(out_of_range(section, "league.every", 0, "at least 1"));
    }
    if !(1..=MAX_LEAGUE).contains(&league.size) {
        let expected = format_args!("between 1 and {MAX_LEAGUE}");
        problems.push(out_of_range(section, "league.size", league.size, expected));
    }
    let trained = draft.policies.iter().filter(|(_, other)| other.value.is_trained());
    let mut known: Vec<&str> = trained.map(|(other, _)| other.as_str()).collect();
    known.insert(0, MAIN_POLICY);
    if !known.contains(&league.of.as_str()) {
        let key = section.name("league.of");
        let near = suggest::nearest(&league.of, &known).map(|near| format!("did you mean \"{near}\"? "));
        let message = format!(
            "`{key}` of policy `{name}` is \"{}\", which is not trained; {}trained are {}",
            league.of,
            near.unwrap_or_default(),
            suggest::list(&known)
        );
        problems.push(invalid(section, "league.of", message));
    }
}

/// A learning rate of its own is a multiple of that of the stage.
fn check_rates(draft: &Draft, stage: &StageDraft, problems: &mut Vec<Problem>) {
    let own = draft.policies.values().find(|policy| policy.value.trainer.learning_rate.is_some());
    if let Some(own) = own.filter(|_| stage.rollout.is_some() && stage.optimizer.value.learning_rate == 0.0) {
        problems.push(
            Problem::new(
                Code::Conflict,
                "a policy cannot learn faster than a stage with a learning rate of 0",
            )
            .at(own.origin_or_table("trainer.learning_rate"), "")
            .at(stage.optimizer.origin_or_table("learning_rate"), "the learning rate of the stage"),
        );
    }
}

/// Several policies are trained and sampled in this process, by methods whose only model is the policy.
fn check_stage(
    first: &Section<PolicySettings>,
    stage: &StageDraft,
    resolved: &Stage,
    problems: &mut Vec<Problem>,
) {
    let conflict = |message: &str| {
        Problem::new(Code::Conflict, message.to_owned()).at(first.node.origin, "another policy")
    };
    if resolved.trains_outside() {
        problems.push(
            conflict("several policies are trained in this process")
                .at(stage.trainer.origin_or_table("backend"), "trains in other processes")
                .hint(format!("set `{} = \"embedded\"`", stage.trainer.name("backend"))),
        );
    }
    let Some(rollout) = &stage.rollout else { return };
    if rollout.engine.value.embedded().is_none() {
        problems.push(
            conflict("several policies are sampled in this process")
                .at(rollout.engine.origin_or_table("engine"), "samples on servers")
                .hint(format!("set `{} = \"embedded\"`", rollout.engine.name("engine"))),
        );
    }
    if rollout.schedule.value.pin_version {
        problems.push(
            conflict("groups of several policies cannot be pinned to a version")
                .at(rollout.schedule.origin_or_table("pin_version"), "")
                .hint(format!("remove `{}`", rollout.schedule.name("pin_version"))),
        );
    }
    if stage.trainer.value.reference.is_some() && resolved.algorithm.needs_reference() {
        problems.push(
            conflict("several policies have their own starts as references")
                .at(stage.trainer.origin_or_table("reference"), "")
                .hint(format!("remove `{}`", stage.trainer.name("reference"))),
        );
    }
    for (model, is_trained) in [
        ("a critic", resolved.algorithm.critic.is_some_and(|critic| !critic.is_joint)),
        ("a process-reward model", resolved.algorithm.prm.is_some()),
    ] {
        if is_trained {
            let method = resolved.algorithm.method.name();
            problems.push(
                conflict(&format!("method \"{method}\" trains {model}, which has one policy"))
                    .at(stage.keys.origin_or_table("method"), "")
                    .hint("choose a method without one, such as `grpo` or `rloo`"),
            );
        }
    }
}
