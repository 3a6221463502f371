//! Ranges of single values. The crates that own the settings check them; here their errors get an origin.

use std::fmt;

use rloom_data::{DataError, DataSettings};
use rloom_engine::{RolloutSettings, SamplingSettings, TrainSettings};
use rloom_model::{OptimizerError, OptimizerSettings, Schedule};
use rloom_reward::RewardSettings;

use super::run::MAX_THREADS;
use crate::layered::read::{custom, split_hint};
use crate::problem::{Code, Problem};
use crate::section::Section;

/// Keys that greedy decoding does not use.
const TRUNCATION: [&str; 3] = ["top_k", "top_p", "min_p"];

/// A value outside its range; `expected` describes the range.
pub(super) fn out_of_range<T>(
    section: &Section<T>,
    key: &str,
    value: impl fmt::Display,
    expected: impl fmt::Display,
) -> Problem {
    invalid(section, key, &format!("`{}` must be {expected}, but is {value}", section.name(key)))
}

/// An invalid value, with the message of the error.
pub(super) fn invalid<T>(section: &Section<T>, key: &str, message: &str) -> Problem {
    let (message, hint) = split_hint(message);
    let problem = Problem::new(Code::OutOfRange, message).at(section.origin_or_table(key), "");
    hint.into_iter().fold(problem, Problem::hint)
}

/// An invalid value, with the reason.
pub(super) fn setting<T>(section: &Section<T>, key: &str, reason: &dyn fmt::Display) -> Problem {
    invalid(section, key, &format!("`{}`: {reason}", section.name(key)))
}

/// Checks a lower bound.
pub(super) fn at_least<T>(
    section: &Section<T>,
    key: &str,
    value: u64,
    least: u64,
    problems: &mut Vec<Problem>,
) {
    if value < least {
        problems.push(out_of_range(section, key, value, format_args!("at least {least}")));
    }
}

pub(super) fn sampling(section: &Section<SamplingSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(out_of_range(section, error.key, &error.value, error.expected));
    }
    if section.value.is_greedy() {
        for key in TRUNCATION {
            if let Some(origin) = section.key_origin(key) {
                let temperature = section.sibling_name(key, "temperature");
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(key)))
                        .at(origin, "greedy decoding takes the most probable token")
                        .at_if_set(section.origin("temperature"), "0 is greedy")
                        .hint(format!("set `{temperature}` above 0, or remove `{key}`")),
                );
            }
        }
    }
}

pub(super) fn engine(section: &Section<RolloutSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(out_of_range(section, error.key, &error.value, error.expected));
    }
}

pub(super) fn optimizer(section: &Section<OptimizerSettings>, problems: &mut Vec<Problem>) {
    match section.value.validate() {
        Ok(()) => {}
        Err(OptimizerError::Setting { key, value, range }) => {
            problems.push(out_of_range(section, key, value, range));
        }
        Err(other) => problems.push(at_table(section, &other.to_string())),
    }
    if section.value.schedule == Schedule::Constant
        && let Some(origin) = section.key_origin("min_lr_ratio")
    {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("min_lr_ratio")))
                .at(origin, "a constant learning rate does not decay")
                .at_if_set(section.origin("schedule"), "constant")
                .hint(format!(
                    "set `{} = \"linear\"` or `\"cosine\"`",
                    section.sibling_name("min_lr_ratio", "schedule")
                )),
        );
    }
}

pub(super) fn trainer(section: &Section<TrainSettings>, problems: &mut Vec<Problem>) {
    let settings = &section.value;
    at_least(section, "micro_batch_tokens", settings.micro_batch_tokens as u64, 1, problems);
    if settings.threads > MAX_THREADS {
        let expected = format_args!("at most {MAX_THREADS} (0: all threads of the run)");
        problems.push(out_of_range(section, "threads", settings.threads, expected));
    }
}

pub(super) fn data(section: &Section<DataSettings>, problems: &mut Vec<Problem>) {
    match section.value.validate() {
        Ok(()) => {}
        Err(DataError::Setting { key, problem }) => problems.push(setting(section, key, &problem)),
        Err(other) => problems.push(at_table(section, &other.to_string())),
    }
}

pub(super) fn reward(section: &Section<RewardSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(custom(&error.to_string(), section.table(), &section.node));
    }
}

/// An error about a whole table.
pub(super) fn at_table<T>(section: &Section<T>, message: &str) -> Problem {
    let (message, hint) = split_hint(message);
    let problem =
        Problem::new(Code::Conflict, format!("`{}`: {message}", section.table())).at(section.node.origin, "");
    hint.into_iter().fold(problem, Problem::hint)
}
