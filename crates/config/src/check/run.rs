//! `[run]`.

use super::values::{at_least, out_of_range};
use crate::problem::Problem;
use crate::section::Section;
use crate::settings::RunSettings;

/// More threads than any machine has are a slip of the keyboard.
pub(super) const MOST_THREADS: usize = 4096;
/// A year.
const MOST_SECONDS: u64 = 31_536_000;

pub(super) fn check(
    section: &Section<RunSettings>,
    default_name: &str,
    problems: &mut Vec<Problem>,
) -> RunSettings {
    let mut run = section.value.clone();
    if !section.says("name") {
        default_name.clone_into(&mut run.name);
    }
    if let Some(reason) = refuse_name(&run.name) {
        let problem = out_of_range(section, "name", &format!("cannot be \"{}\": {reason}", run.name));
        problems.push(if section.says("name") {
            problem
        } else {
            problem.hint("the name comes from the file's; set `run.name`, or use --run-name")
        });
    }
    if run.threads > MOST_THREADS {
        let reason = format!("is {}, it must be at most {MOST_THREADS} (0 takes one per core)", run.threads);
        problems.push(out_of_range(section, "threads", &reason));
    }
    if !(1..=MOST_SECONDS).contains(&run.stall_seconds) {
        let reason = format!("is {}, it must be between 1 and {MOST_SECONDS}", run.stall_seconds);
        problems.push(out_of_range(section, "stall_seconds", &reason));
    }
    at_least(section, "keep_last", run.keep_last, 1, problems);
    run
}

/// Why a name cannot be a file's.
pub(super) fn refuse_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.len() > 100 {
        Some("it is longer than 100 characters")
    } else if name.starts_with(['.', '-']) {
        Some("it begins with `.` or `-`")
    } else if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        Some("it becomes part of file names, so it consists of letters, digits, `.`, `_` and `-`")
    } else {
        None
    }
}
