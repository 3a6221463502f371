//! `[[stage]]`.

use rloom_algo::{AlgoError, Algorithm, Method};
use rloom_engine::Backend;
use rloom_model::MomentFormat;

use super::run::{bad_name, invalid_name};
use super::schedule;
use super::values::{self, at_least};
use super::{domains, environment};
use crate::compose::{Draft, StageDraft};
use crate::layered::suggest;
use crate::problem::{Code, Problem};
use crate::settings::{MODEL, PREVIOUS, Stage, StageRollout, Start};
use crate::validation::ValidationSettings;

pub(super) fn check_all(draft: &Draft, problems: &mut Vec<Problem>) -> Option<Vec<Stage>> {
    if draft.stages.is_empty() {
        problems.push(
            Problem::new(Code::MissingKey, "there is no stage")
                .at(draft.root.node.origin, "")
                .hint("add a `[[stage]]` with `name`, `method`, `steps` and `groups_per_batch`"),
        );
        return None;
    }
    let stages = draft.stages.iter().enumerate();
    let checked: Vec<Option<Stage>> = stages.map(|(place, _)| check(draft, place, problems)).collect();
    checked.into_iter().collect()
}

fn check(draft: &Draft, place: usize, problems: &mut Vec<Problem>) -> Option<Stage> {
    let stage = &draft.stages[place];
    let (section, keys) = (&stage.keys, &stage.keys.value);
    check_name(draft, place, problems);
    let start = start(draft, place, problems);
    at_least(section, "steps", keys.steps, 1, problems);
    at_least(section, "groups_per_batch", keys.groups_per_batch, 1, problems);
    check_eval_every(draft, stage, problems);
    values::data(&stage.data, problems);
    let reward = stage.rollout.as_ref().map(|rollout| &rollout.reward);
    environment::check(&stage.environment, &stage.data, reward, problems);
    values::optimizer(&stage.optimizer, problems);
    values::trainer(&stage.trainer, problems);
    check_moments(stage, problems);
    check_dropout(stage, problems);
    let algorithm = algorithm(stage, problems);
    if let Some(algorithm) = &algorithm {
        environment::check_steps(stage, algorithm, problems);
        environment::check_recombination(stage, algorithm, problems);
        environment::check_pairs(stage, algorithm, problems);
        environment::check_joint_critic(stage, algorithm, problems);
        check_overlong(stage, algorithm, problems);
        check_critic(stage, algorithm, problems);
        check_reference(stage, algorithm, problems);
        check_noise(stage, algorithm, problems);
    }
    let rollout = rollout(stage, algorithm.as_ref(), problems);
    let validation = validation(stage, problems);
    let algorithm = algorithm?;
    Some(Stage {
        name: keys.name.clone(),
        start: start?,
        steps: keys.steps,
        groups_per_batch: keys.groups_per_batch,
        order: keys.order,
        eval_every: eval_every(draft, stage),
        checkpoint_every: keys.checkpoint_every.unwrap_or(draft.run.value.checkpoint_every),
        algorithm_settings: algorithm.settings_for_any_sampler(max_staleness(stage)),
        algorithm,
        optimizer: stage.optimizer.value.clone(),
        trainer: stage.trainer.value.clone(),
        data: stage.data.value.clone(),
        environment: stage.environment.value.clone(),
        teacher: keys.teacher.clone(),
        rollout,
        validation,
    })
}

/// Steps between evaluations; a reward model generates nothing to evaluate.
fn eval_every(draft: &Draft, stage: &StageDraft) -> u64 {
    let keys = &stage.keys.value;
    if keys.method.trains_reward_model() {
        return 0;
    }
    keys.eval_every.or(draft.eval.as_ref().map(|e| e.keys.value.every)).unwrap_or(0)
}

fn check_eval_every(draft: &Draft, stage: &StageDraft, problems: &mut Vec<Problem>) {
    let section = &stage.keys;
    let Some(origin) = section.key_origin("eval_every") else { return };
    let problem = Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("eval_every")));
    if section.value.method.trains_reward_model() {
        problems.push(problem.at(origin, "a reward model generates nothing to evaluate").hint(format!(
            "remove it, and set `{}` to measure the loss on held-out rows",
            section.name("validation.every")
        )));
    } else if draft.eval.is_none() {
        problems.push(problem.at(origin, "there is no `[eval]`"));
    }
}

/// The validation of a stage that learns from rows; it needs held-out rows.
fn validation(stage: &StageDraft, problems: &mut Vec<Problem>) -> Option<ValidationSettings> {
    let Some(section) = &stage.validation else {
        if let Some(origin) = stage.keys.key_origin("validation") {
            problems.push(
                Problem::new(Code::Unread, format!("nothing reads `{}`", stage.keys.name("validation")))
                    .at(origin, "the stage samples: its held-out measure is the accuracy")
                    .at_if_set(stage.keys.origin("method"), "")
                    .hint("remove it, and set `[eval]` to evaluate on held-out tasks"),
            );
        }
        return None;
    };
    values::validation(section, problems);
    if section.value.every == 0 {
        return None;
    }
    if !stage.data.value.has_held_out() {
        problems.push(
            Problem::new(Code::Conflict, "there are no held-out rows to validate on")
                .at(section.node.origin, "")
                .at(stage.data.origin_or_table("path"), "has no held-out split")
                .hint(format!(
                    "set `{}` to another file, or `{}` to hold out rows of this one",
                    stage.data.sibling_name("path", "eval_path"),
                    stage.data.sibling_name("path", "eval_rows")
                )),
        );
    }
    Some(section.value.clone())
}

/// The penalty on overlong completions is reported as the component `overlong`.
fn check_overlong(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    let Some(rollout) = stage.rollout.as_ref().filter(|_| algorithm.overlong.is_some()) else { return };
    if rollout.reward.value.components.iter().any(|c| c.name == "overlong") {
        problems.push(
            Problem::new(Code::Conflict, "two reward components are named `overlong`")
                .at(rollout.reward.origin_or_table("components"), "the first one")
                .at_if_set(
                    stage.keys.origin("algorithm.overlong.factor").or(stage.keys.origin("method")),
                    "the second one is the algorithm's penalty",
                )
                .hint(format!(
                    "rename the component, or set `{} = 0`",
                    stage.keys.name("algorithm.overlong.factor")
                )),
        );
    }
}

/// A reference is read by methods that have one; scores of new samples are in no cache.
fn check_reference(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    let section = &stage.trainer;
    let Some(reference) = &section.value.reference else { return };
    let is_own = section.own_keys().any(|key| key == "reference");
    let has_teacher = stage.keys.value.teacher.is_some() && algorithm.preference.is_none();
    if algorithm.needs_reference() && has_teacher && is_own {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("reference")))
                .at(section.origin_or_table("reference"), "")
                .at_if_set(stage.keys.origin("teacher"), "the KL is measured to the teacher"),
        );
    }
    if !algorithm.needs_reference() && is_own {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("reference")))
                .at(section.origin_or_table("reference"), "")
                .at_if_set(stage.keys.origin("method"), format!("{} has no reference", algorithm.method)),
        );
    }
    if reference.cache.is_some() && stage.rollout.is_some() && is_own {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("reference.cache")))
                .at(section.origin_or_table("reference.cache"), "")
                .at_if_set(
                    stage.keys.origin("method"),
                    format!("{} samples anew in each step", algorithm.method),
                ),
        );
    }
    if reference.cache.is_some() && matches!(stage.trainer.value.backend, Backend::Megatron(_)) {
        problems.push(
            Problem::new(Code::Conflict, "the Megatron backend keeps no scores of its reference")
                .at(section.origin_or_table("reference.cache"), "")
                .at(section.origin_or_table("backend"), "")
                .hint(format!("remove `{}`", section.name("reference.cache"))),
        );
    }
    let moves = reference.sync_every.is_some() && algorithm.needs_reference();
    if moves && matches!(stage.trainer.value.backend, Backend::Megatron(_) | Backend::Deepspeed(_)) {
        problems.push(
            Problem::new(Code::Conflict, "the reference does not move with this backend")
                .at(section.origin_or_table("reference.sync_every"), "")
                .at(section.origin_or_table("backend"), "divides a model in its own way")
                .hint(format!(
                    "set `{} = \"torch\"`, or remove `{}`",
                    section.name("backend"),
                    section.name("reference.sync_every")
                )),
        );
    }
}

/// Completions are sampled without dropout: training with it would compare them with another policy.
fn check_dropout(stage: &StageDraft, problems: &mut Vec<Problem>) {
    let trainer = &stage.trainer;
    let dropout = trainer.value.lora.as_ref().map_or(0.0, |lora| lora.dropout);
    if dropout == 0.0 || stage.rollout.is_none() {
        return;
    }
    let key = trainer.name("lora.dropout");
    problems.push(
        Problem::new(Code::Conflict, format!("`{key}`: a stage that samples has no dropout"))
            .at(
                trainer.origin_or_table("lora.dropout"),
                "would train another policy than the one that has sampled",
            )
            .at_if_set(stage.keys.origin("method"), "samples completions")
            .hint(format!("remove `{key}`")),
    );
}

/// PyTorch's optimizers have their own moments.
fn check_moments(stage: &StageDraft, problems: &mut Vec<Problem>) {
    let (moments, trainer) = (stage.optimizer.value.moments, &stage.trainer);
    if moments == MomentFormat::F32 || matches!(trainer.value.backend, Backend::Embedded(_)) {
        return;
    }
    let key = stage.optimizer.name("moments");
    problems.push(
        Problem::new(Code::Conflict, format!("`{key}`: PyTorch ranks have moments of 32 bits"))
            .at(stage.optimizer.origin_or_table("moments"), "8 bits")
            .at_if_set(trainer.key_origin("backend"), "the backend")
            .hint(format!("remove `{key}`")),
    );
}

/// Models of Megatron have no value head.
fn check_critic(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    if algorithm.critic.is_some() && matches!(stage.trainer.value.backend, Backend::Megatron(_)) {
        problems.push(
            Problem::new(Code::Conflict, "the Megatron backend trains no critic")
                .at(stage.trainer.origin_or_table("backend"), "models without a value head")
                .at_if_set(stage.keys.origin("method"), "has a critic")
                .hint(format!(
                    "set `{} = \"torch\"`, or choose a method without a critic, such as `grpo`",
                    stage.trainer.name("backend")
                )),
        );
    }
}

/// Ranks of Megatron add no noise to embeddings.
fn check_noise(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    if algorithm.neftune_noise_alpha.is_some() && matches!(stage.trainer.value.backend, Backend::Megatron(_))
    {
        problems.push(
            Problem::new(Code::Conflict, "the Megatron backend adds no noise to embeddings")
                .at(stage.trainer.origin_or_table("backend"), "")
                .at_if_set(stage.keys.origin("algorithm.neftune_noise_alpha"), "noise on embeddings")
                .hint(format!(
                    "set `{} = \"torch\"`, or remove `{}`",
                    stage.trainer.name("backend"),
                    stage.keys.name("algorithm.neftune_noise_alpha")
                )),
        );
    }
}

fn check_name(draft: &Draft, place: usize, problems: &mut Vec<Problem>) {
    let section = &draft.stages[place].keys;
    let name = &section.value.name;
    if let Some(reason) = invalid_name(name) {
        problems.push(bad_name(section, name, reason));
    } else if name == PREVIOUS || name == MODEL {
        problems.push(bad_name(section, name, "it has a special meaning in `from`"));
    }
    if let Some(first) = draft.stages[..place].iter().find(|s| s.keys.value.name == *name) {
        problems.push(
            Problem::new(Code::DuplicateStage, format!("two stages are named `{name}`"))
                .at(section.origin_or_table("name"), "the second one")
                .at(first.keys.origin_or_table("name"), "the first one"),
        );
    }
}

fn start(draft: &Draft, place: usize, problems: &mut Vec<Problem>) -> Option<Start> {
    let section = &draft.stages[place].keys;
    let before = if place == 0 { Start::Model } else { Start::Stage(place - 1) };
    let from = match section.value.from.as_deref() {
        None => return Some(before),
        Some(MODEL) => return Some(Start::Model),
        Some(PREVIOUS) if place > 0 => return Some(before),
        Some(name) => name,
    };
    let earlier: Vec<&str> = draft.stages[..place].iter().map(|s| s.keys.value.name.as_str()).collect();
    if let Some(found) = earlier.iter().position(|name| *name == from) {
        return Some(Start::Stage(found));
    }
    let later = draft.stages[place..].iter().any(|s| s.keys.value.name == from);
    let label =
        if later { "is not an earlier stage".to_owned() } else { suggest::did_you_mean(from, &earlier) };
    let choices = if earlier.is_empty() {
        "the first stage can only start from `model`".to_owned()
    } else {
        format!("use `{MODEL}`, `{PREVIOUS}` or an earlier stage: {}", suggest::list(&earlier))
    };
    problems.push(
        Problem::new(
            Code::UnknownStage,
            format!("`{}`: there is no earlier stage \"{from}\"", section.name("from")),
        )
        .at(section.origin_or_table("from"), label)
        .hint(choices),
    );
    None
}

/// Largest age of a trained token: reused groups are older than those that are new.
fn max_staleness(stage: &StageDraft) -> u64 {
    stage.rollout.as_ref().map_or(0, |rollout| rollout.schedule.value.max_trained_age())
}

fn algorithm(stage: &StageDraft, problems: &mut Vec<Problem>) -> Option<Algorithm> {
    let (section, keys) = (&stage.keys, &stage.keys.value);
    let key = |key: &str| format!("algorithm.{key}");
    let algorithm = match Algorithm::resolve(keys.method, &keys.algorithm, max_staleness(stage)) {
        Ok(algorithm) => algorithm,
        Err(AlgoError::NotRead { keys: unread, .. }) => {
            for found in unread {
                let name = key(found.key);
                let origin = section.key_origin(&name).unwrap_or(section.node.origin);
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(&name)))
                        .at(origin, found.reason.to_string())
                        .at_if_set(section.origin("method"), format!("the method is {}", keys.method)),
                );
            }
            return None;
        }
        Err(AlgoError::Refused { key: at, reason, hint }) => {
            let name = key(at);
            problems.push(
                Problem::new(Code::Conflict, format!("`{}`: {reason}", section.name(&name)))
                    .at(section.origin(&name).or(section.origin("method")).unwrap_or(section.node.origin), "")
                    .hint(hint),
            );
            return None;
        }
        Err(other) => {
            problems.push(values::at_table(section, &other));
            return None;
        }
    };
    let minibatches = u64::from(algorithm.minibatches);
    if keys.groups_per_batch > 0 && !keys.groups_per_batch.is_multiple_of(minibatches) {
        let down = keys.groups_per_batch / minibatches * minibatches;
        let fitting: Vec<String> =
            [down, down + minibatches].iter().filter(|b| **b > 0).map(ToString::to_string).collect();
        let fewer = (1..=minibatches.min(keys.groups_per_batch))
            .rev()
            .find(|m| keys.groups_per_batch.is_multiple_of(*m))
            .unwrap_or(1);
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` does not divide `{}`",
                    section.name("algorithm.minibatches"),
                    section.name("groups_per_batch")
                ),
            )
            .at(
                section.origin_or_table("algorithm.minibatches"),
                format!("{minibatches} optimizer steps per pass"),
            )
            .at(
                section.origin_or_table("groups_per_batch"),
                format!("{} groups per batch", keys.groups_per_batch),
            )
            .hint(format!(
                "use `groups_per_batch = {}`, or `minibatches = {fewer}`",
                fitting.join("` or `groups_per_batch = ")
            )),
        );
    }
    Some(algorithm)
}

fn rollout(
    stage: &StageDraft,
    algorithm: Option<&Algorithm>,
    problems: &mut Vec<Problem>,
) -> Option<StageRollout> {
    let section = &stage.keys;
    let Some(rollout) = &stage.rollout else {
        for name in ["sampling", "reward", "rollout", "schedule", "domains", "allow_truncated_sampling"] {
            if let Some(origin) = section.key_origin(name) {
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(name)))
                        .at(origin, "supervised stages neither sample nor score")
                        .at_if_set(section.origin("method"), format!("the method is {}", Method::Sft)),
                );
            }
        }
        return None;
    };
    values::sampling(&rollout.sampling, problems);
    // A distillation samples without a reward.
    if !(algorithm.is_some_and(|a| a.distillation.is_some()) && rollout.reward.value.components.is_empty()) {
        values::reward(&rollout.reward, problems);
    }
    values::engine(&rollout.engine, problems);
    let allowed = section.value.allow_truncated_sampling.unwrap_or(false);
    check_truncation(stage, &rollout.sampling, allowed, problems);
    domains::check(&rollout.domains, &rollout.schedule, &rollout.reward.value, algorithm, problems);
    Some(StageRollout {
        sampling: rollout.sampling.value.clone(),
        allow_truncated_sampling: allowed,
        engine: rollout.engine.value.clone(),
        reward: rollout.reward.value.clone(),
        schedule: schedule::check(stage, &rollout.schedule, algorithm, problems),
        domains: rollout.domains.value.clone(),
    })
}

/// Log-probabilities are those of the full softmax. If the sampler uses only a part of it, importance ratios are biased
/// by a factor that no metric shows.
fn check_truncation(
    stage: &StageDraft,
    sampling: &crate::section::Section<rloom_engine::SamplingSettings>,
    allowed: bool,
    problems: &mut Vec<Problem>,
) {
    let section = &stage.keys;
    match sampling.value.restriction() {
        Some("temperature") => problems.push(
            Problem::new(
                Code::Conflict,
                "greedy decoding gives equal completions in a group, which have no advantages",
            )
            .at(sampling.origin_or_table("temperature"), "0 is greedy")
            .hint(format!("set `{}` to 1.0 for training", sampling.name("temperature"))),
        ),
        Some(key) if !allowed => problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` makes the sampling distribution differ from the policy that is trained",
                    sampling.name(key)
                ),
            )
            .at(sampling.origin_or_table(key), "log-probabilities remain those of the full softmax")
            .at_if_set(section.origin("allow_truncated_sampling"), "")
            .hint(format!(
                "remove it from training (evaluation may use it: `[eval.sampling]`), or allow it with \
                 `{} = true`",
                section.name("allow_truncated_sampling")
            )),
        ),
        None if allowed => problems.push(
            Problem::new(
                Code::Unread,
                format!("nothing reads `{}`", section.name("allow_truncated_sampling")),
            )
            .at(section.origin_or_table("allow_truncated_sampling"), "sampling is not truncated"),
        ),
        _ => {}
    }
}
