//! `[[stage]]`.

use rloom_algo::{AlgoError, Algorithm, Method};

use super::environment;
use super::run::refuse_name;
use super::schedule;
use super::values::{self, at_least, out_of_range};
use crate::compose::{Draft, StageDraft};
use crate::layered::suggest;
use crate::problem::{Code, Problem};
use crate::settings::{MODEL, PREVIOUS, Stage, StageRollout, Start};

pub(super) fn check_all(draft: &Draft, problems: &mut Vec<Problem>) -> Option<Vec<Stage>> {
    if draft.stages.is_empty() {
        problems.push(
            Problem::new(Code::MissingKey, "there is no stage: nothing would be trained")
                .at(draft.root.node.origin, "")
                .hint("add a `[[stage]]` with `name`, `method`, `steps` and `batch`"),
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
    at_least(section, "batch", keys.batch, 1, problems);
    if let (None, Some(origin)) = (&draft.eval, section.key_origin("eval_every")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("eval_every")))
                .at(origin, "there is no `[eval]`"),
        );
    }
    values::data(&stage.data, problems);
    let reward = stage.rollout.as_ref().map(|rollout| &rollout.reward);
    environment::check(&stage.environment, &stage.data, reward, problems);
    values::optimizer(&stage.optimizer, problems);
    values::trainer(&stage.trainer, problems);
    let algorithm = algorithm(stage, problems);
    if let Some(algorithm) = &algorithm {
        environment::check_steps(stage, algorithm, problems);
        check_overlong(stage, algorithm, problems);
    }
    let rollout = rollout(stage, algorithm.as_ref(), problems);
    Some(Stage {
        name: keys.name.clone(),
        start: start?,
        steps: keys.steps,
        groups_per_batch: keys.batch,
        order: keys.order,
        eval_every: keys.eval_every.or(draft.eval.as_ref().map(|e| e.keys.value.every)).unwrap_or(0),
        checkpoint_every: keys.checkpoint_every.unwrap_or(draft.run.value.checkpoint_every),
        algorithm: algorithm?,
        algorithm_settings: stage.keys.value.algorithm,
        optimizer: stage.optimizer.value.clone(),
        trainer: stage.trainer.value.clone(),
        data: stage.data.value.clone(),
        environment: stage.environment.value,
        rollout,
    })
}

/// The penalty on overlong completions is shown under a name of its own.
fn check_overlong(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    let Some(rollout) = stage.rollout.as_ref().filter(|_| algorithm.overlong.is_some()) else { return };
    if rollout.reward.value.components.iter().any(|c| c.name == "overlong") {
        problems.push(
            Problem::new(Code::Conflict, "two parts of the reward are called `overlong`")
                .at(rollout.reward.place("components"), "one is here")
                .at_written(
                    stage.keys.origin("algorithm.overlong.factor").or(stage.keys.origin("method")),
                    "the other is the algorithm's penalty",
                )
                .hint("give the component another `name`, or set `algorithm.overlong.factor = 0`"),
        );
    }
}

fn check_name(draft: &Draft, place: usize, problems: &mut Vec<Problem>) {
    let section = &draft.stages[place].keys;
    let name = &section.value.name;
    if let Some(reason) = refuse_name(name) {
        problems.push(out_of_range(section, "name", &format!("cannot be \"{name}\": {reason}")));
    } else if name == PREVIOUS || name == MODEL {
        problems.push(out_of_range(section, "name", &format!("cannot be \"{name}\": `from` uses that word")));
    }
    if let Some(first) = draft.stages[..place].iter().find(|s| s.keys.value.name == *name) {
        problems.push(
            Problem::new(Code::DuplicateStage, format!("two stages are called `{name}`"))
                .at(section.place("name"), "the second one")
                .at(first.keys.place("name"), "the first one"),
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
        if later { "comes only after this one".to_owned() } else { suggest::did_you_mean(from, &earlier) };
    let choices = if earlier.is_empty() {
        "the first stage starts from `model`".to_owned()
    } else {
        format!("it is `{MODEL}`, `{PREVIOUS}` or an earlier stage: {}", suggest::list(&earlier))
    };
    problems.push(
        Problem::new(
            Code::UnknownStage,
            format!("`{}` names no earlier stage: \"{from}\"", section.name("from")),
        )
        .at(section.place("from"), label)
        .hint(choices),
    );
    None
}

fn algorithm(stage: &StageDraft, problems: &mut Vec<Problem>) -> Option<Algorithm> {
    let (section, keys) = (&stage.keys, &stage.keys.value);
    let max_staleness = stage.rollout.as_ref().map_or(0, |rollout| rollout.schedule.value.max_staleness);
    let key = |key: &str| format!("algorithm.{key}");
    let algorithm = match Algorithm::resolve(keys.method, &keys.algorithm, max_staleness) {
        Ok(algorithm) => algorithm,
        Err(AlgoError::NotRead { keys: unread, .. }) => {
            for found in unread {
                let name = key(found.key);
                let origin = section.key_origin(&name).unwrap_or(section.node.origin);
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(&name)))
                        .at(origin, found.reason.to_string())
                        .at_written(section.origin("method"), format!("the method is {}", keys.method)),
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
            problems.push(values::at_table(section, &other.to_string()));
            return None;
        }
    };
    let minibatches = u64::from(algorithm.minibatches);
    if keys.batch > 0 && !keys.batch.is_multiple_of(minibatches) {
        let down = keys.batch / minibatches * minibatches;
        let fitting: Vec<String> =
            [down, down + minibatches].iter().filter(|b| **b > 0).map(ToString::to_string).collect();
        let fewer =
            (1..=minibatches.min(keys.batch)).rev().find(|m| keys.batch.is_multiple_of(*m)).unwrap_or(1);
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` does not divide `{}`",
                    section.name("algorithm.minibatches"),
                    section.name("batch")
                ),
            )
            .at(section.place("algorithm.minibatches"), format!("{minibatches} optimiser steps per pass"))
            .at(section.place("batch"), format!("{} groups per batch", keys.batch))
            .hint(format!("use `batch = {}`, or `minibatches = {fewer}`", fitting.join("` or `batch = "))),
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
        for name in ["sampling", "reward", "rollout", "schedule", "allow_truncated_sampling"] {
            if let Some(origin) = section.key_origin(name) {
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(name)))
                        .at(origin, "it learns from demonstrations: nothing is sampled or rewarded")
                        .at_written(section.origin("method"), format!("the method is {}", Method::Sft)),
                );
            }
        }
        return None;
    };
    values::sampling(&rollout.sampling, problems);
    values::reward(&rollout.reward, problems);
    values::engine(&rollout.engine, problems);
    let allowed = section.value.allow_truncated_sampling.unwrap_or(false);
    check_truncation(stage, &rollout.sampling, allowed, problems);
    Some(StageRollout {
        sampling: rollout.sampling.value.clone(),
        allow_truncated_sampling: allowed,
        engine: rollout.engine.value.clone(),
        reward: rollout.reward.value.clone(),
        schedule: schedule::check(stage, &rollout.schedule, algorithm, problems),
    })
}

/// The log-probabilities that training uses are of the full softmax. Where the sampler draws from a part of it, the
/// importance ratios are wrong by a factor that nobody sees.
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
                "greedy decoding gives every completion of a group alike: there is nothing to learn from",
            )
            .at(sampling.place("temperature"), "0 is greedy")
            .hint("1.0 is usual in training"),
        ),
        Some(key) if !allowed => problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` makes the sampler another distribution than the policy that is trained",
                    sampling.name(key)
                ),
            )
            .at(sampling.place(key), "the log-probabilities stay those of the full softmax")
            .at_written(section.origin("allow_truncated_sampling"), "")
            .hint(format!(
                "leave it out in training (evaluation may have it: `[eval.sampling]`), or accept it with \
                 `{} = true`",
                section.name("allow_truncated_sampling")
            )),
        ),
        None if allowed => problems.push(
            Problem::new(
                Code::Unread,
                format!("nothing reads `{}`", section.name("allow_truncated_sampling")),
            )
            .at(section.place("allow_truncated_sampling"), "the sampling is not truncated"),
        ),
        _ => {}
    }
}
