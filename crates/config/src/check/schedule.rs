//! `[schedule]`: interleaving of rollouts and training.

use rloom_algo::Algorithm;
use rloom_core::OnUpdate;
use rloom_sched::{CutOrder, ScheduleSettings, Stragglers};

use super::values::{out_of_range, setting};
use crate::compose::StageDraft;
use crate::problem::{Code, Problem};
use crate::section::Section;

/// Upper bound of `max_staleness`; keeps sums over batches within 64 bits.
const MAX_STALENESS: u64 = 10_000;
/// Upper bound of `oversample`.
const MAX_OVERSAMPLE: u64 = 1_000_000;

pub(super) fn check(
    stage: &StageDraft,
    section: &Section<ScheduleSettings>,
    algorithm: Option<&Algorithm>,
    problems: &mut Vec<Problem>,
) -> ScheduleSettings {
    let keys = section.value;
    for (key, value, most) in [
        ("max_staleness", keys.max_staleness, MAX_STALENESS),
        ("oversample", keys.oversample, MAX_OVERSAMPLE),
    ] {
        if value > most {
            problems.push(out_of_range(section, key, value, format_args!("at most {most}")));
        }
    }
    check_order(section, problems);
    check_stragglers(section, problems);
    check_update(section, problems);
    check_reuse(stage, section, problems);
    if keys.pin_version {
        check_pin(stage, section, algorithm, problems);
    }
    let on_update = if section.is_set("on_update") {
        keys.on_update
    } else {
        ScheduleSettings::default_on_update(keys.max_staleness, keys.pin_version)
    };
    ScheduleSettings { on_update, ..keys }
}

fn check_order(section: &Section<ScheduleSettings>, problems: &mut Vec<Problem>) {
    let keys = section.value;
    if keys.oversample > 0 && keys.cut_order == CutOrder::Ticket {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!("`{}` has no benefit with batches in ticket order", section.name("oversample")),
            )
            .at(section.origin_or_table("oversample"), "runs more groups than a batch needs")
            .at_if_set(section.origin("cut_order"), "a batch still waits for the lowest tickets")
            .hint(format!(
                "set `{} = \"completion\"`: a batch then consists of the groups that are ready first",
                section.sibling_name("oversample", "cut_order")
            )),
        );
    }
    if keys.cut_order == CutOrder::Completion && keys.oversample == 0 && keys.max_staleness == 0 {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!("`{} = \"completion\"` has no effect", section.name("cut_order")),
            )
            .at(
                section.origin_or_table("cut_order"),
                "at `max_staleness = 0` without `oversample`, the batch consists of all running groups",
            )
            .hint("remove it, or set `oversample` or `max_staleness` above 0"),
        );
    }
}

fn check_stragglers(section: &Section<ScheduleSettings>, problems: &mut Vec<Problem>) {
    let keys = section.value;
    if let (CutOrder::Ticket, Some(origin)) = (keys.cut_order, section.key_origin("stragglers")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("stragglers")))
                .at(origin, "batches in ticket order wait for every group")
                .at_if_set(section.origin("cut_order"), "ticket order"),
        );
    } else if keys.stragglers == Stragglers::Wait && (keys.max_staleness == 0 || keys.oversample > 0) {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{} = \"wait\"` needs `max_staleness` above 0 and `oversample = 0`",
                    section.name("stragglers")
                ),
            )
            .at(section.origin_or_table("stragglers"), "trains on every group before it is too old")
            .at_if_set(
                section.origin("max_staleness").filter(|_| keys.max_staleness == 0),
                "every group would be due at once",
            )
            .at_if_set(
                section.origin("oversample").filter(|_| keys.oversample > 0),
                "runs more groups than batches can contain",
            ),
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
                section.origin_or_table("stragglers"),
                "moves the groups that a batch was cut without to a later batch of deferred groups",
            )
            .at_if_set(
                section.origin("max_staleness").filter(|_| keys.max_staleness > 0),
                "such groups continue during training and join a later batch",
            )
            .at_if_set(
                section.origin("oversample").filter(|_| keys.oversample == 0),
                "every batch contains all running groups",
            ),
        );
    }
}

fn check_update(section: &Section<ScheduleSettings>, problems: &mut Vec<Problem>) {
    let keys = section.value;
    if let (0, Some(origin)) = (keys.max_staleness, section.key_origin("on_update")) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("on_update")))
                .at(origin, "at `max_staleness = 0` no completion is in flight when weights are updated"),
        );
    }
}

fn check_reuse(stage: &StageDraft, section: &Section<ScheduleSettings>, problems: &mut Vec<Problem>) {
    let Some(reuse) = section.value.reuse else { return };
    if let Err(error) = reuse.validate() {
        problems.push(setting(section, &format!("reuse.{}", error.key), &error.problem));
        return;
    }
    let new = stage.keys.value.groups_per_batch;
    if reuse.share > 0.0 && reuse.groups(new) == 0 {
        let least = 1.0 / (new as f64 + 1.0);
        problems.push(
            Problem::new(
                Code::Conflict,
                format!("`{}` is less than one group of a batch", section.name("reuse.share")),
            )
            .at(section.origin_or_table("reuse.share"), format!("a batch has {new} new groups"))
            .hint(format!("set it to at least {:.3}, or to 0 for no reuse", (least * 1e3).ceil() / 1e3)),
        );
    }
}

/// With pinned versions the samples of a group depend only on its ticket: neither timing nor the results of other groups
/// may affect when it runs or which groups are trained.
fn check_pin(
    stage: &StageDraft,
    section: &Section<ScheduleSettings>,
    algorithm: Option<&Algorithm>,
    problems: &mut Vec<Problem>,
) {
    let keys = section.value;
    let refuse = |key: &str, label: &str| {
        Problem::new(
            Code::Conflict,
            format!("`{}` cannot be combined with `{}`", section.name("pin_version"), section.name(key)),
        )
        .at(section.origin_or_table("pin_version"), "fixes a group's version by its ticket")
        .at_if_set(section.origin(key), label.to_owned())
    };
    if keys.cut_order == CutOrder::Completion {
        problems.push(refuse("cut_order", "the order of completion depends on timing"));
    }
    // Without staleness `on_update` is unread, which `check_update` reports.
    if keys.max_staleness > 0 && section.is_set("on_update") && keys.on_update != OnUpdate::Finish {
        problems.push(refuse("on_update", "completions would continue with a later version").hint(format!(
            "remove `{}`: new weights then wait for the groups of older versions",
            section.name("on_update")
        )));
    }
    if keys.max_staleness == 0 {
        return;
    }
    if keys.max_failures > 0 {
        problems
            .push(refuse("max_failures", "the replacement of a failed group starts with a later version"));
    }
    if algorithm.is_some_and(|a| a.filters.replaces_groups()) {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` cannot be combined with a filter that replaces groups",
                    section.name("pin_version")
                ),
            )
            .at(section.origin_or_table("pin_version"), "fixes a group's version by its ticket")
            .at_if_set(stage.keys.origin("method"), "replaces filtered groups, with a later version")
            .hint(
                "set `max_staleness = 0`, or disable the filter: `algorithm.filter.dynamic_sampling = false`",
            ),
        );
    }
}
