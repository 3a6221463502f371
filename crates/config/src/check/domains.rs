//! `[domains]`.

use rloom_algo::Algorithm;
use rloom_core::ValueRange;
use rloom_reward::RewardSettings;
use rloom_sched::{ScheduleSettings, Stragglers};

use super::values::setting;
use crate::domains::DomainSettings;
use crate::problem::{Code, Problem};
use crate::section::Section;

pub(super) fn check(
    section: &Section<DomainSettings>,
    schedule: &Section<ScheduleSettings>,
    reward: &RewardSettings,
    algorithm: Option<&Algorithm>,
    problems: &mut Vec<Problem>,
) {
    let keys = &section.value;
    for weight in keys.quotas.values() {
        if let Err(error) = ValueRange::above(0.0, 1e9).check("quotas", *weight) {
            problems.push(setting(section, "quotas", &error.problem));
        }
    }
    for filter in keys.filters.values() {
        if let Err(error) = filter.validate() {
            problems.push(setting(section, "filters", &error.problem));
        }
    }
    if let Some(curriculum) = &keys.curriculum {
        check_curriculum(section, curriculum, reward, problems);
    }
    if keys.max_draws == Some(0) {
        problems.push(super::values::out_of_range(section, "max_draws", 0, format_args!("at least 1")));
    }
    if let Some(origin) = section.key_origin("max_draws").filter(|_| !keys.replaces_groups()) {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("max_draws")))
                .at(origin, "no filter replaces groups"),
        );
    }
    let policy = schedule.value.stragglers;
    if !keys.quotas.is_empty() && policy != Stragglers::Drop {
        let (name, label) = match policy {
            Stragglers::Wait => ("wait", "fills batches with slow groups of any domain"),
            _ => ("defer", "collects slow groups of any domain in a batch of their own"),
        };
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` cannot be combined with `{} = \"{name}\"`",
                    section.name("quotas"),
                    schedule.name("stragglers")
                ),
            )
            .at(section.origin_or_table("quotas"), "every batch has its groups of each domain")
            .at_if_set(schedule.origin("stragglers"), label),
        );
    }
    let filters = algorithm.is_some_and(|algorithm| algorithm.filters.replaces_groups());
    if keys.replaces_groups() && !filters && schedule.value.pin_version && schedule.value.max_staleness > 0 {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` cannot be combined with `{}`",
                    section.name("filters"),
                    schedule.name("pin_version")
                ),
            )
            .at(section.origin_or_table("filters"), "replaces filtered groups, with a later version")
            .at_if_set(schedule.origin("pin_version"), "fixes a group's version by its ticket"),
        );
    }
}

fn check_curriculum(
    section: &Section<DomainSettings>,
    curriculum: &rloom_sched::CurriculumSettings,
    reward: &RewardSettings,
    problems: &mut Vec<Problem>,
) {
    if let Err(error) = curriculum.validate() {
        problems.push(setting(section, "curriculum", &error.problem));
    }
    if section.value.quotas.is_empty() {
        problems.push(
            Problem::new(Code::Unread, format!("nothing reads `{}`", section.name("curriculum")))
                .at(section.origin_or_table("curriculum"), "there are no quotas that could follow it"),
        );
    }
    if let Some(domain) = section.value.quotas.keys().find(|domain| !reward.verified().contains(domain)) {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`{}` measures success, but no component of the reward verifies the domain `{domain}`",
                    section.name("curriculum")
                ),
            )
            .at(section.origin_or_table("curriculum"), ""),
        );
    }
}
