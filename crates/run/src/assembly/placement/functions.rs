//! Machines of the processes of functions.

use std::collections::BTreeMap;

use rloom_cluster::Launcher;
use rloom_config::{Config, Stage};
use rloom_env::EnvironmentSettings;
use rloom_reward::RewardSettings;

use super::{Offer, Place, PlacedRole};

/// Processes of functions of a stage and of its evaluation with their machines; none if they run on the machine of the controller.
pub(crate) fn function_roles(config: &Config, stage: &Stage, offer: &Offer) -> Vec<PlacedRole> {
    if config.cluster.as_ref().is_none_or(|cluster| cluster.launcher == Launcher::Local) {
        return Vec::new();
    }
    let mut roles = Vec::new();
    if let Some(rollout) = &stage.rollout {
        roles.extend(workers("", &rollout.reward, &stage.environment));
    } else {
        roles.extend(environment("", &stage.environment));
    }
    if let Some(eval) = config.eval.as_ref().filter(|_| stage.eval_every > 0) {
        for (name, set) in eval.all_sets() {
            roles.extend(workers(&eval_prefix(name), &set.reward, &set.environment));
        }
    }
    place(roles, offer)
}

/// Prefix of the roles of an evaluation, or of one of its further sets.
pub(crate) fn eval_prefix(set: Option<&str>) -> String {
    set.map_or_else(|| "eval ".to_owned(), |set| format!("eval {set} "))
}

/// Names and numbers of processes.
fn workers(
    prefix: &str,
    reward: &RewardSettings,
    environment_settings: &EnvironmentSettings,
) -> Vec<(String, usize)> {
    let of_rewards = reward.components.iter().filter_map(|component| {
        let processes = component.kind.processes()?;
        Some((format!("{prefix}reward {}", component.name), processes))
    });
    of_rewards.chain(environment(prefix, environment_settings)).collect()
}

fn environment(prefix: &str, settings: &EnvironmentSettings) -> Option<(String, usize)> {
    Some((format!("{prefix}environment"), settings.processes()?))
}

/// Places each process on the machine that has most cores for each of its processes then; of equal ones on the last: the first
/// one has the controller.
fn place(roles: Vec<(String, usize)>, offer: &Offer) -> Vec<PlacedRole> {
    let machines = offer.for_functions();
    let mut placed: BTreeMap<usize, usize> = BTreeMap::new();
    let mut next = || {
        let load = |machine: usize| placed.get(&machine).map_or(1, |processes| processes + 1);
        // Fractions are compared without rounding.
        let chosen = machines.iter().copied().reduce(|best, other| {
            if load(other.0) * best.1 <= load(best.0) * other.1 { other } else { best }
        });
        let machine = chosen.map_or(0, |(machine, _)| machine);
        *placed.entry(machine).or_default() += 1;
        Place { machine, slots: 0..0 }
    };
    let role = |(role, processes): (String, usize)| PlacedRole {
        role,
        processes,
        places: (0..processes).map(|_| next()).collect(),
    };
    roles.into_iter().map(role).collect()
}
