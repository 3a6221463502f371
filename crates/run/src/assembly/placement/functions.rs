//! Machines of the processes of functions, and devices of those of reward models.

use std::collections::BTreeMap;

use rloom_cluster::Launcher;
use rloom_config::{Config, Stage};
use rloom_env::EnvironmentSettings;
use rloom_reward::{Kind, RewardSettings};

use super::{Offer, Place, PlacedRole, PlacementError, ranks_of_run};

/// Processes of a role, before they are placed.
struct Wanted {
    role: String,
    processes: usize,
    /// True for those with devices of their own, false for those with the devices of ranks; `None` for those without devices.
    has_own_devices: Option<bool>,
}

impl Wanted {
    fn is_apart(&self) -> bool {
        self.has_own_devices == Some(true)
    }
}

/// Processes of functions and reward models of a stage and of its evaluation, with their places. Those of functions are left out
/// if they run on the machine of the controller.
pub(crate) fn function_roles(
    config: &Config,
    stage: &Stage,
    offer: &Offer,
) -> Result<Vec<PlacedRole>, PlacementError> {
    let is_local = config.cluster.as_ref().is_none_or(|cluster| cluster.launcher == Launcher::Local);
    let mut wanted = wanted(config, stage);
    wanted.retain(|wanted| wanted.has_own_devices.is_some() || !is_local);
    place(config, wanted, offer)
}

/// Processes of reward models with devices of their own, in the stage that has most.
pub(super) fn most_apart(config: &Config) -> usize {
    let apart = |stage| -> usize {
        wanted(config, stage).iter().filter(|wanted| wanted.is_apart()).map(|wanted| wanted.processes).sum()
    };
    config.stages.iter().map(apart).max().unwrap_or(0)
}

fn wanted(config: &Config, stage: &Stage) -> Vec<Wanted> {
    let mut roles = Vec::new();
    if let Some(rollout) = &stage.rollout {
        roles.extend(workers("", &rollout.reward, &stage.environment));
    } else {
        roles.extend(environment("", &stage.environment));
    }
    if let Some(eval) = config.eval.as_ref().filter(|_| stage.samples_held_out()) {
        for (name, set) in eval.all_sets() {
            roles.extend(workers(&eval_prefix(name), &set.reward, &set.environment));
        }
    }
    roles
}

/// Prefix of the roles of an evaluation, or of one of its further sets.
pub(crate) fn eval_prefix(set: Option<&str>) -> String {
    set.map_or_else(|| "eval ".to_owned(), |set| format!("eval {set} "))
}

/// Names and numbers of processes.
fn workers(prefix: &str, reward: &RewardSettings, environment_settings: &EnvironmentSettings) -> Vec<Wanted> {
    let of_rewards = reward.components.iter().filter_map(|component| {
        let has_own_devices = match &component.kind {
            Kind::RewardModel(settings) => Some(!settings.colocate),
            _ => None,
        };
        let (role, processes) = (format!("{prefix}reward {}", component.name), component.kind.processes()?);
        Some(Wanted { role, processes, has_own_devices })
    });
    of_rewards.chain(environment(prefix, environment_settings)).collect()
}

fn environment(prefix: &str, settings: &EnvironmentSettings) -> Option<Wanted> {
    let (role, processes) = (format!("{prefix}environment"), settings.processes()?);
    Some(Wanted { role, processes, has_own_devices: None })
}

/// Places the processes: those of reward models on GPUs, if there are any, one each; others on machines with cores.
fn place(config: &Config, wanted: Vec<Wanted>, offer: &Offer) -> Result<Vec<PlacedRole>, PlacementError> {
    let mut spread = Spread { machines: offer.for_functions(), placed: BTreeMap::new() };
    let mut first = ranks_of_run(config);
    let place = |Wanted { role, processes, has_own_devices }| {
        let places = match has_own_devices {
            None => (0..processes).map(|_| Place { machine: spread.next().0, slots: 0..0 }).collect(),
            Some(_) if !offer.has_gpus() => {
                let place = |(machine, cores)| Place { machine, slots: 0..cores };
                (0..processes).map(|_| place(spread.next())).collect()
            }
            Some(is_apart) => {
                let skipped = if is_apart { first } else { 0 };
                first += if is_apart { processes } else { 0 };
                on_gpus(&role, skipped, processes, offer)?
            }
        };
        Ok(PlacedRole { role, processes, places })
    };
    wanted.into_iter().map(place).collect()
}

/// A GPU for each process, after the first `skipped` ones.
fn on_gpus(
    role: &str,
    skipped: usize,
    processes: usize,
    offer: &Offer,
) -> Result<Vec<Place>, PlacementError> {
    let gpus = offer.gpus().skip(skipped).take(processes);
    let places: Vec<Place> = gpus.map(|(machine, gpu)| Place { machine, slots: gpu..gpu + 1 }).collect();
    if places.len() == processes {
        return Ok(places);
    }
    Err(PlacementError::RewardModel {
        role: role.to_owned(),
        processes,
        ranks: skipped,
        needed: skipped + processes,
        offered: offer.text(),
    })
}

/// Gives each process the machine that has most cores for each of its processes then; of equal ones the last: the first one has
/// the controller.
struct Spread {
    machines: Vec<(usize, usize)>,
    placed: BTreeMap<usize, usize>,
}

impl Spread {
    /// The next machine, with its cores.
    fn next(&mut self) -> (usize, usize) {
        let load = |machine: usize| self.placed.get(&machine).map_or(1, |processes| processes + 1);
        // Fractions are compared without rounding.
        let chosen = self.machines.iter().copied().reduce(|best, other| {
            if load(other.0) * best.1 <= load(best.0) * other.1 { other } else { best }
        });
        let (machine, cores) = chosen.unwrap_or((0, 1));
        *self.placed.entry(machine).or_default() += 1;
        (machine, cores)
    }
}
