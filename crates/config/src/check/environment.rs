//! `[environment]`: agreement with the tasks, the reward and the algorithm.

use rloom_algo::{Algorithm, Estimator, Recombination};
use rloom_data::{DataSettings, Source};
use rloom_env::EnvironmentSettings;
use rloom_reward::{ComponentSettings, Kind, RewardSettings};

use super::values::setting;
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
        problems.push(setting(environment, error.key, &error.problem));
    }
    let name = environment.value.name();
    for part in data.value.parts() {
        check_source(environment, data, &part.source, problems);
    }
    if let Some(reward) = reward {
        check_critics(environment, reward, problems);
    }
    if let Some(reward) = reward
        && !environment.value.has_steps()
        && let Some(component) =
            reward.value.components.iter().find(|c| matches!(c.kind, Kind::Environment(_)))
    {
        let message = format!("the component `{}` has no step rewards to add up", component.name);
        problems.push(
            Problem::new(Code::Conflict, message)
                .at(
                    reward.origin_or_table("components"),
                    format!("the `{name}` environment does not reward turns"),
                )
                .at_if_set(environment.origin("kind"), "")
                .hint(format!("remove the component, or {}", set_game(environment, data))),
        );
    }
}

/// Models that give agents their credit need agents that share a reward.
fn check_critics(
    environment: &Section<EnvironmentSettings>,
    reward: &Section<RewardSettings>,
    problems: &mut Vec<Problem>,
) {
    let Some(component) = reward.value.components.iter().find(|c| c.kind.judges_agents()) else { return };
    let reason = match &environment.value {
        EnvironmentSettings::SelfPlay(_) => "each agent of a game has its own",
        other if other.agents().is_empty() => "the environment has a single one",
        other if other.rewards_turns() => "`reward_turns` gives agents their own",
        _ => return,
    };
    let message = format!("the component `{}` gives agents rewards, and {reason}", component.name);
    problems.push(
        Problem::new(Code::Conflict, message)
            .at(reward.origin_or_table("components"), "")
            .at_if_set(environment.origin("kind"), ""),
    );
}

/// Checks that the environment plays the tasks of a source.
fn check_source(
    environment: &Section<EnvironmentSettings>,
    data: &Section<DataSettings>,
    source: &Source,
    problems: &mut Vec<Problem>,
) {
    let (name, generator) = (environment.value.name(), source.name());
    let is_files = matches!(source, Source::Files(_));
    match environment.value.generator() {
        // Files may contain any task; the environment parses the answer of each.
        Some(played) if played != generator && !is_files => problems.push(
            Problem::new(
                Code::Conflict,
                format!("the `{name}` environment cannot play the tasks of the `{generator}` generator"),
            )
            .at(environment.origin_or_table("kind"), "parses a game from a task's answer")
            .at_if_set(data.origin("generator"), "its answers do not contain one")
            .hint(format!("set `{} = \"{played}\"`, or remove the environment", data.name("generator"))),
        ),
        None if source.is_game() && matches!(environment.value, EnvironmentSettings::SingleTurn) => {
            problems.push(
                Problem::new(
                    Code::Conflict,
                    format!("the `{generator}` generator creates games of several turns, but the environment has only one"),
                )
                .at(data.origin_or_table("generator"), "")
                .at_if_set(environment.origin("kind"), "ends after one turn")
                .hint(set_game(environment, data)),
            );
        }
        _ => {}
    }
}

/// Credit per step needs an environment with steps and a reward that includes them.
pub(super) fn check_steps(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    if !algorithm.advantage.is_some_and(|a| matches!(a.estimator, Estimator::Gigpo { .. })) {
        return;
    }
    let (environment, keys) = (&stage.environment, &stage.keys);
    let key = if keys.is_set("algorithm.advantage") { "algorithm.advantage" } else { "method" };
    if !environment.value.has_steps() {
        let name = environment.value.name();
        problems.push(
            Problem::new(
                Code::Conflict,
                "advantage \"gigpo\" assigns credit to steps, but episodes have none",
            )
            .at(keys.origin_or_table(key), "")
            .at_if_set(environment.origin("kind"), format!("the `{name}` environment has no steps"))
            .hint(format!(
                "set `{} = \"group\"`, which is equivalent without steps; for steps, {} and reward them with the component \
                 `{{ kind = \"environment\" }}`",
                keys.name("algorithm.advantage"),
                set_game(environment, &stage.data)
            )),
        );
    } else if let Some(rollout) = &stage.rollout
        && rollout.reward.value.environment_weight().is_none_or(|weight| weight == 0.0)
    {
        problems.push(
            Problem::new(
                Code::Conflict,
                "advantage \"gigpo\" assigns credit to steps, but the reward does not include them",
            )
            .at(keys.origin_or_table(key), "")
            .at(
                rollout.reward.origin_or_table("components"),
                "does not include the environment's step rewards",
            )
            .hint(format!("add `{{ kind = \"environment\" }}` to `{}`", rollout.reward.name("components"))),
        );
    }
}

/// Turns of different episodes are combined if each agent takes one turn that depends on no other, up to a number of
/// combinations.
pub(super) fn check_recombination(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    let Some(kind) = algorithm.recombination() else { return };
    let (environment, keys) = (&stage.environment, &stage.keys);
    let key = if keys.is_set("algorithm.advantage") { "algorithm.advantage" } else { "method" };
    let conflict = |message: String| Problem::new(Code::Conflict, message).at(keys.origin_or_table(key), "");
    if !environment.value.combines_turns() {
        let message = "the advantage combines turns of different episodes, and here a turn can depend on others: each \
                       agent must take a single turn, as in a debate with `rounds = 1`";
        problems.push(conflict(message.to_owned()).at_if_set(environment.origin("kind"), ""));
        return;
    }
    let (size, agents) = (algorithm.group_size, environment.value.agents().len() as u32);
    if kind.count(size.into(), agents).is_none() {
        let limit = Recombination::LIMIT;
        problems.push(conflict(format!(
            "the advantage judges more than {limit} combinations for each task: those of {size} episodes with {agents} \
             agents; lower `{}`",
            keys.name("algorithm.group_size")
        )));
    }
    let judged_together = |c: &&ComponentSettings| c.kind.judges_groups() || c.kind.judges_agents();
    if let Some(rollout) = &stage.rollout
        && let Some(component) = rollout.reward.value.components.iter().find(judged_together)
    {
        problems.push(
            conflict(format!(
                "the component `{}` judges whole groups or single agents, and no combinations of turns",
                component.name
            ))
            .at(rollout.reward.origin_or_table("components"), ""),
        );
    }
}

/// The episodes of a preference pair are whole completions.
pub(super) fn check_pairs(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    let (environment, keys) = (&stage.environment, &stage.keys);
    if !algorithm.samples_pairs() || !environment.value.divides_episodes() {
        return;
    }
    let message = format!(
        "method \"{}\" compares whole completions, and here an episode has several segments",
        algorithm.method
    );
    problems.push(
        Problem::new(Code::Conflict, message)
            .at(keys.origin_or_table("method"), "")
            .at_if_set(environment.origin("history").or(environment.origin("kind")), "divides episodes"),
    );
}

/// A joint critic values a reward that several agents share.
pub(super) fn check_joint_critic(stage: &StageDraft, algorithm: &Algorithm, problems: &mut Vec<Problem>) {
    if !algorithm.critic.is_some_and(|critic| critic.is_joint) {
        return;
    }
    let (environment, keys) = (&stage.environment, &stage.keys);
    let message = match &environment.value {
        EnvironmentSettings::SelfPlay(_) => {
            "advantage \"joint_gae\" values the reward that agents share, and here each has its own"
        }
        other if other.agents().is_empty() => {
            "advantage \"joint_gae\" values what several agents know together, and here there is one; use \"gae\""
        }
        _ => return,
    };
    let key = if keys.is_set("algorithm.advantage") { "algorithm.advantage" } else { "method" };
    problems.push(
        Problem::new(Code::Conflict, message)
            .at(keys.origin_or_table(key), "")
            .at_if_set(environment.origin("kind"), ""),
    );
}

/// Hint to set the environment, in the shared table if no table sets it yet, and tasks for it. The game is that of the tasks,
/// or `guess`.
fn set_game(environment: &Section<EnvironmentSettings>, data: &Section<DataSettings>) -> String {
    let key =
        if environment.is_set("kind") { environment.name("kind") } else { "environment.kind".to_owned() };
    let source = &data.value.source;
    let game = if source.is_game() { source.name() } else { "guess" };
    let tasks = match source {
        Source::Files(_) => String::new(),
        source if source.is_game() => String::new(),
        _ => format!(" and `{} = \"{game}\"`", data.name("generator")),
    };
    format!("set `{key} = \"{game}\"`{tasks}")
}
