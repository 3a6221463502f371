//! `[run]`.

use super::values::{at_least, invalid, out_of_range};
use crate::problem::{Code, Problem};
use crate::section::Section;
use crate::settings::RunSettings;

/// Upper bound of thread counts; larger values are typing errors.
pub(super) const MAX_THREADS: usize = 4096;
/// A year.
const MAX_SECONDS: u64 = 31_536_000;

pub(super) fn check(
    section: &Section<RunSettings>,
    default_name: &str,
    problems: &mut Vec<Problem>,
) -> RunSettings {
    let mut run = section.value.clone();
    if !section.is_set("name") {
        default_name.clone_into(&mut run.name);
    }
    if let Some(reason) = invalid_name(&run.name) {
        let problem = bad_name(section, &run.name, reason);
        problems.push(if section.is_set("name") {
            problem
        } else {
            problem.hint("the default is the name of the file; set `run.name`, or use --run-name")
        });
    }
    if run.threads > MAX_THREADS {
        let expected = format_args!("at most {MAX_THREADS} (0: one per core)");
        problems.push(out_of_range(section, "threads", run.threads, expected));
    }
    if !(1..=MAX_SECONDS).contains(&run.stall_seconds) {
        let expected = format_args!("between 1 and {MAX_SECONDS}");
        problems.push(out_of_range(section, "stall_seconds", run.stall_seconds, expected));
    }
    at_least(section, "keep_last", run.keep_last, 1, problems);
    run
}

/// An invalid `name`.
pub(super) fn bad_name<T>(section: &Section<T>, name: &str, reason: &str) -> Problem {
    invalid(section, "name", format!("`{}` cannot be \"{name}\": {reason}", section.name("name")))
}

/// An invalid name of a policy.
pub(super) fn bad_policy_name<T>(section: &Section<T>, name: &str, reason: &str) -> Problem {
    Problem::new(Code::OutOfRange, format!("a policy cannot be named \"{name}\": {reason}"))
        .at(section.node.origin, "")
}

/// Reason why a name cannot be part of file names.
pub(super) fn invalid_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.len() > 100 {
        Some("it is longer than 100 characters")
    } else if name.starts_with(['.', '-']) {
        Some("it starts with `.` or `-`")
    } else if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        Some("it becomes part of file names, so only letters, digits, `.`, `_` and `-` are allowed")
    } else {
        None
    }
}
