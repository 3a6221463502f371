//! `[environment]`: whether it fits the tasks that it is given and the reward that is read from it.

use rloom_algo::{Algorithm, Estimator};
use rloom_data::{DataSettings, Source};
use rloom_env::EnvironmentSettings;
use rloom_reward::{Kind, RewardSettings};

use super::values::refused;
use crate::compose::StageDraft;
use crate::problem::{Code, Problem};
use crate::section::Section;

pub(super) fn check(
    environment: &Section<EnvironmentSettings>,
    data: &Section<DataSettings>,
    reward: Option<&Section<RewardSettings>>,
    problems: &mut Vec<Problem>,
) {
    if let Err(error) = environment.value.validate() {
        problems.push(refused(environment, error.key, &error.problem.to_string()));
    }
    let name = environment.value.name();
    let generator = data.value.source.name();
    match (&environment.value, &data.value.source) {
        // Files may hold any task; the environment reads each one's answer.
        (EnvironmentSettings::Guess(_), Source::Guess(_) | Source::Files(_)) => {}
        (EnvironmentSettings::Guess(_), _) => problems.push(
            Problem::new(
                Code::Conflict,
                format!("the `{name}` environment cannot play the tasks of the `{generator}` generator"),
            )
            .at(environment.place("kind"), "reads range and secret from a task's answer")
            .at_written(data.origin("generator"), "its answers say neither")
            .hint(format!("set `{} = \"guess\"`, or leave the environment out", data.name("generator"))),
        ),
        (EnvironmentSettings::SingleTurn, Source::Guess(_)) => problems.push(
            Problem::new(
                Code::Conflict,
                "the `guess` generator makes games of several turns, and nobody answers the policy",
            )
            .at(data.place("generator"), "")
            .at_written(environment.origin("kind"), "ends after one turn")
            .hint(set_guess(environment)),
        ),
        (EnvironmentSettings::SingleTurn, _) => {}
    }
    if let Some(reward) = reward
        && !environment.value.has_steps()
        && let Some(component) =
            reward.value.components.iter().find(|c| matches!(c.kind, Kind::Environment(_)))
    {
        let message = format!("there are no step rewards for `{}` to add up", component.name);
        problems.push(
            Problem::new(Code::Conflict, message)
                .at(reward.place("components"), format!("the `{name}` environment rewards no turns"))
                .at_written(environment.origin("kind"), "")
                .hint(set_guess(environment)),
        );
    }
}

/// Credit by step needs steps, and a reward that counts them.
pub(super) fn check_steps(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    if !algorithm.advantage.is_some_and(|a| matches!(a.estimator, Estimator::Gigpo { .. })) {
        return;
    }
    let (environment, keys) = (&stage.environment, &stage.keys);
    let key = if keys.says("algorithm.advantage") { "algorithm.advantage" } else { "method" };
    if !environment.value.has_steps() {
        let name = environment.value.name();
        problems.push(
            Problem::new(
                Code::Conflict,
                "advantage \"gigpo\" gives credit to steps, and an episode has none",
            )
            .at(keys.place(key), "")
            .at_written(environment.origin("kind"), format!("the `{name}` environment has no steps"))
            .hint(format!("{}; without steps, `advantage = \"group\"` is the same", set_guess(environment))),
        );
    } else if let Some(rollout) = &stage.rollout
        && rollout.reward.value.environment_weight().is_none_or(|weight| weight == 0.0)
    {
        problems.push(
            Problem::new(
                Code::Conflict,
                "advantage \"gigpo\" gives credit to steps, and the reward counts none",
            )
            .at(keys.place(key), "")
            .at(rollout.reward.place("components"), "without the environment's rewards")
            .hint("add `{ kind = \"environment\" }` to the components"),
        );
    }
}

/// Where nothing was written, the shared table is the place: all stages are told the same then.
fn set_guess(environment: &Section<EnvironmentSettings>) -> String {
    let key = if environment.says("kind") { environment.name("kind") } else { "environment.kind".to_owned() };
    format!("set `{key} = \"guess\"`")
}
