//! Ranges of single values. The crates that own the settings check them; here their errors get an origin.

use std::fmt;

use miette::Diagnostic;
use rloom_core::{ErrorText, SettingError, SettingProblem};
use rloom_data::{DataError, DataSettings};
use rloom_engine::{RolloutEngineSettings, SamplingSettings, TrainSettings};
use rloom_model::{OptimizerError, OptimizerSettings, Schedule};
use rloom_reward::RewardSettings;

use super::run::MAX_THREADS;
use crate::layered::read::custom;
use crate::problem::{Code, Problem};
use crate::section::Section;
use crate::validation::ValidationSettings;

/// Keys that greedy decoding does not use.
const TRUNCATION: [&str; 3] = ["top_k", "top_p", "min_p"];

/// A value outside its range; `expected` describes the range.
pub(super) fn out_of_range<T>(
    section: &Section<T>,
    key: &str,
    value: impl fmt::Display,
    expected: impl fmt::Display,
) -> Problem {
    invalid(section, key, format!("`{}` must be {expected}, but is {value}", section.name(key)))
}

/// An invalid value, with this message.
pub(super) fn invalid<T>(section: &Section<T>, key: &str, message: String) -> Problem {
    Problem::new(Code::OutOfRange, message).at(section.origin_or_table(key), "")
}

/// A setting that its crate refused.
fn refused<T>(section: &Section<T>, SettingError { key, problem }: &SettingError) -> Problem {
    match problem {
        SettingProblem::OutOfRange { value, range } => out_of_range(section, key, value, range),
        SettingProblem::Invalid { value, expected } => out_of_range(section, key, value, expected),
        other => setting(section, key, other),
    }
}

/// An invalid value, with the reason for its refusal.
pub(super) fn setting<T>(section: &Section<T>, key: &str, reason: &dyn Diagnostic) -> Problem {
    let problem = invalid(section, key, format!("`{}`: {reason}", section.name(key)));
    reason.help().into_iter().fold(problem, |problem, hint| problem.hint(hint.to_string()))
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
        problems.push(refused(section, &error));
    }
    if section.value.is_greedy() {
        for key in TRUNCATION {
            if let Some(origin) = section.key_origin(key) {
                problems.push(
                    Problem::new(Code::Unread, format!("nothing reads `{}`", section.name(key)))
                        .at(origin, "greedy decoding takes the most probable token")
                        .at_if_set(section.origin("temperature"), "0 is greedy")
                        .hint(format!("remove `{}`", section.name(key))),
                );
            }
        }
    }
}

pub(super) fn engine(section: &Section<RolloutEngineSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(refused(section, &error));
    }
}

pub(super) fn optimizer(section: &Section<OptimizerSettings>, problems: &mut Vec<Problem>) {
    match section.value.validate() {
        Ok(()) => {}
        Err(OptimizerError::Setting { key, value, range }) => {
            problems.push(out_of_range(section, key, value, range));
        }
        Err(other) => problems.push(at_table(section, &other)),
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
    if let Err(error) = section.value.validate() {
        problems.push(refused(section, &error));
    }
    if section.value.threads > MAX_THREADS {
        let expected = format_args!("at most {MAX_THREADS} (0: all threads of the run)");
        problems.push(out_of_range(section, "threads", section.value.threads, expected));
    }
}

pub(super) fn data(section: &Section<DataSettings>, problems: &mut Vec<Problem>) {
    match section.value.validate() {
        Ok(()) => {}
        Err(DataError::Setting { key, problem }) => problems.push(setting(section, key, &problem)),
        Err(other) => problems.push(at_table(section, &other)),
    }
}

pub(super) fn validation(section: &Section<ValidationSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(refused(section, &error));
    }
}

pub(super) fn reward(section: &Section<RewardSettings>, problems: &mut Vec<Problem>) {
    if let Err(error) = section.value.validate() {
        problems.push(custom(&ErrorText::of(&error), section.table(), &section.node));
    }
}

/// An error about a whole table.
pub(super) fn at_table<T>(section: &Section<T>, error: &dyn Diagnostic) -> Problem {
    let problem =
        Problem::new(Code::Conflict, format!("`{}`: {error}", section.table())).at(section.node.origin, "");
    error.help().into_iter().fold(problem, |problem, hint| problem.hint(hint.to_string()))
}
