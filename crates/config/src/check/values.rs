//! Ranges, which the rooms check themselves: their errors name the key, and here it gets its place.

use rloom_data::{DataError, DataSettings};
use rloom_engine::{RolloutSettings, SamplingSettings, SettingError};
use rloom_model::OptimizerError;
use rloom_reward::RewardSettings;

use super::run::MOST_THREADS;
use crate::layered::read::{custom, split_hint};
use crate::problem::{Code, Problem};
use crate::section::Section;

/// A value outside its range; `reason` goes on from the key's name: "is 3, …".
pub(super) fn out_of_range<T>(section: &Section<T>, key: &str, reason: &str) -> Problem {
    at_key(section, key, &format!("`{}` {reason}", section.name(key)))
}

/// The same, where `reason` is a sentence of its own.
pub(super) fn refused<T>(section: &Section<T>, key: &str, reason: &str) -> Problem {
    at_key(section, key, &format!("`{}`: {reason}", section.name(key)))
}

fn at_key<T>(section: &Section<T>, key: &str, message: &str) -> Problem {
    let (message, hint) = split_hint(message);
    let problem = Problem::new(Code::OutOfRange, message).at(section.place(key), "");
    hint.into_iter().fold(problem, Problem::hint)
}

/// A value that is below its least.
pub(super) fn at_least<T>(
    section: &Section<T>,
    key: &str,
    value: u64,
    least: u64,
    problems: &mut Vec<Problem>,
) {
    if value < least {
        problems.push(out_of_range(section, key, &format!("is {value}, it must be at least {least}")));
    }
}

pub(super) fn sampling(section: &Section<SamplingSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(of_rollout(section, &error));
    }
    if section.value.is_greedy() {
        for key in ["top_k", "top_p", "min_p"] {
            if let Some(origin) = section.key_origin(key) {
                let temperature = section.beside(key, "temperature");
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(key)))
                        .at(origin, "greedy decoding takes the most probable token")
                        .at_written(section.origin("temperature"), "0 is greedy")
                        .hint(format!("set `{temperature}` above 0, or leave `{key}` out")),
                );
            }
        }
    }
}

pub(super) fn engine(section: &Section<RolloutSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(of_rollout(section, &error));
    }
}

fn of_rollout<T>(section: &Section<T>, error: &SettingError) -> Problem {
    let SettingError { key, value, expected } = error;
    out_of_range(section, key, &format!("is {value}, it must be {expected}"))
}

pub(super) fn optimizer(section: &Section<rloom_model::OptimizerSettings>, problems: &mut Vec<Problem>) {
    match section.value.validate() {
        Ok(()) => {}
        Err(OptimizerError::Setting { key, value, range }) => {
            problems.push(out_of_range(section, key, &format!("is {value}, it must be {range}")));
        }
        Err(other) => problems.push(at_table(section, &other.to_string())),
    }
    if section.value.schedule == rloom_model::Schedule::Constant
        && let Some(origin) = section.key_origin("min_lr_ratio")
    {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("min_lr_ratio")))
                .at(origin, "a constant learning rate does not fall")
                .at_written(section.origin("schedule"), "constant")
                .hint(format!(
                    "set `{} = \"linear\"` or `\"cosine\"`",
                    section.beside("min_lr_ratio", "schedule")
                )),
        );
    }
}

pub(super) fn trainer(section: &Section<rloom_engine::TrainSettings>, problems: &mut Vec<Problem>) {
    let settings = &section.value;
    at_least(section, "micro_batch_tokens", settings.micro_batch_tokens as u64, 1, problems);
    if settings.threads > MOST_THREADS {
        let reason = format!("is {}, it must be at most {MOST_THREADS} (0 chooses)", settings.threads);
        problems.push(out_of_range(section, "threads", &reason));
    }
}

pub(super) fn data(section: &Section<DataSettings>, problems: &mut Vec<Problem>) {
    match section.value.validate() {
        Ok(()) => {}
        Err(DataError::Setting { key, problem }) => {
            problems.push(refused(section, key, &problem.to_string()));
        }
        Err(other) => problems.push(at_table(section, &other.to_string())),
    }
}

pub(super) fn reward(section: &Section<RewardSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(custom(&error.to_string(), section.table(), &section.node));
    }
}

/// An error in its own words about the whole table.
pub(super) fn at_table<T>(section: &Section<T>, message: &str) -> Problem {
    let (message, hint) = split_hint(message);
    let problem =
        Problem::new(Code::Conflict, format!("`{}`: {message}", section.table())).at(section.node.origin, "");
    hint.into_iter().fold(problem, Problem::hint)
}
