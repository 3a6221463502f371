//! `[schedule]`: how rollouts and training go together.

use rloom_algo::Algorithm;
use rloom_core::OnUpdate;
use rloom_sched::{CutOrder, OnFailure, ScheduleSettings, Stragglers};

use super::values::out_of_range;
use crate::compose::StageDraft;
use crate::keys::ScheduleKeys;
use crate::problem::{Code, Problem};
use crate::section::Section;

/// More versions than any run could make use of; keeps sums over batches within 64 bits.
const MOST_STALENESS: u64 = 10_000;
/// As many groups may run ahead.
const MOST_OVERSAMPLE: u64 = 1_000_000;

pub(super) fn check(
    stage: &StageDraft,
    section: &Section<ScheduleKeys>,
    algorithm: Option<&Algorithm>,
    problems: &mut Vec<Problem>,
) -> ScheduleSettings {
    let keys = section.value;
    for (key, value, most) in [
        ("max_staleness", keys.max_staleness, MOST_STALENESS),
        ("oversample", keys.oversample, MOST_OVERSAMPLE),
    ] {
        if value > most {
            problems.push(out_of_range(section, key, &format!("is {value}, it can be at most {most}")));
        }
    }
    check_order(section, problems);
    check_stragglers(section, problems);
    check_update(section, problems);
    check_failures(section, problems);
    if keys.pin_version {
        check_pin(stage, section, algorithm, problems);
    }
    ScheduleSettings {
        max_staleness: keys.max_staleness,
        pin_version: keys.pin_version,
        on_update: keys
            .on_update
            .unwrap_or_else(|| ScheduleSettings::default_on_update(keys.max_staleness, keys.pin_version)),
        cut_order: keys.cut_order,
        oversample: keys.oversample,
        stragglers: keys.stragglers,
        priority: keys.priority,
        on_failure: keys.on_failure,
        max_failures: keys.max_failures.unwrap_or(ScheduleSettings::default().max_failures),
    }
}

fn check_order(section: &Section<ScheduleKeys>, problems: &mut Vec<Problem>) {
    let keys = section.value;
    if keys.oversample > 0 && keys.cut_order == CutOrder::Ticket {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!("`{}` gains nothing with batches in ticket order", section.name("oversample")),
            )
            .at(section.place("oversample"), "runs more groups than a batch needs")
            .at_written(section.origin("cut_order"), "a batch waits for the lowest tickets all the same")
            .hint(format!(
                "set `{} = \"completion\"`: the groups that are ready first then make the batch",
                section.beside("oversample", "cut_order")
            )),
        );
    }
    if keys.cut_order == CutOrder::Completion && keys.oversample == 0 && keys.max_staleness == 0 {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!("`{}` leaves the batch nothing to choose from", section.name("cut_order")),
            )
            .at(
                section.place("cut_order"),
                "at `max_staleness = 0` without `oversample` every group that runs is part of the batch",
            )
            .hint("leave it out, or set `oversample` or `max_staleness` above 0"),
        );
    }
}

fn check_stragglers(section: &Section<ScheduleKeys>, problems: &mut Vec<Problem>) {
    let keys = section.value;
    if let (CutOrder::Ticket, Some(origin)) = (keys.cut_order, section.key_origin("stragglers")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("stragglers")))
                .at(origin, "batches in ticket order wait for every group")
                .at_written(section.origin("cut_order"), "ticket order"),
        );
    } else if keys.stragglers == Stragglers::Defer && (keys.max_staleness > 0 || keys.oversample == 0) {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{} = \"defer\"` needs `max_staleness = 0` and `oversample` above 0",
                    section.name("stragglers")
                ),
            )
            .at(
                section.place("stragglers"),
                "moves groups that a batch was cut without to a later batch of their own",
            )
            .at_written(
                section.origin("max_staleness").filter(|_| keys.max_staleness > 0),
                "such groups run on beside training and join a later batch",
            )
            .at_written(
                section.origin("oversample").filter(|_| keys.oversample == 0),
                "no batch is cut early",
            ),
        );
    }
}

fn check_update(section: &Section<ScheduleKeys>, problems: &mut Vec<Problem>) {
    let keys = section.value;
    if let (0, Some(origin)) = (keys.max_staleness, section.key_origin("on_update")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("on_update")))
                .at(origin, "at `max_staleness = 0` no completion is under way when weights change"),
        );
    }
}

fn check_failures(section: &Section<ScheduleKeys>, problems: &mut Vec<Problem>) {
    if let (OnFailure::Stop, Some(origin)) = (section.value.on_failure, section.key_origin("max_failures")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("max_failures")))
                .at(origin, "the first group that fails ends the run")
                .at_written(section.origin("on_failure"), "stop")
                .hint(format!(
                    "set `{} = \"replace\"` to draw another group instead",
                    section.beside("max_failures", "on_failure")
                )),
        );
    }
}

/// Pinned groups are a function of their tickets: nothing else may decide when they run, or which of them are trained.
fn check_pin(
    stage: &StageDraft,
    section: &Section<ScheduleKeys>,
    algorithm: Option<&Algorithm>,
    problems: &mut Vec<Problem>,
) {
    let keys = section.value;
    let refuse = |key: &str, label: &str| {
        Problem::new(
            Code::Conflict,
            format!("`{}` does not go with `{}`", section.name("pin_version"), section.name(key)),
        )
        .at(section.place("pin_version"), "a group's ticket alone says which version it runs under")
        .at_written(section.origin(key), label.to_owned())
    };
    if keys.cut_order == CutOrder::Completion {
        problems.push(refuse("cut_order", "which group is ready first depends on timing"));
    }
    // Without staleness nothing reads `on_update`, which is said elsewhere.
    if keys.max_staleness > 0 && keys.on_update.is_some_and(|update| update != OnUpdate::Finish) {
        problems.push(refuse("on_update", "completions would go on under a later version").hint(format!(
            "leave `{}` out: new weights then wait until the groups of older versions are done",
            section.name("on_update")
        )));
    }
    if keys.max_staleness == 0 {
        return;
    }
    if keys.on_failure == OnFailure::Replace {
        problems.push(refuse(
            "on_failure",
            "a group drawn in place of a failed one starts under a later version",
        ));
    }
    if algorithm.is_some_and(|a| a.filters.replaces_groups()) {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!("`{}` does not go with a filter that replaces groups", section.name("pin_version")),
            )
            .at(section.place("pin_version"), "a group's ticket alone says which version it runs under")
            .at_written(stage.keys.origin("method"), "it draws groups in place of filtered ones, under a later version")
            .hint("set `max_staleness = 0`, or turn the filter off: `algorithm.filter.dynamic_sampling = false`"),
        );
    }
}
