//! Machines and devices of the processes of a stage.

mod functions;
mod offer;

use std::ops::Range;

use rloom_algo::Backbone;
use rloom_config::{Config, Stage};
use rloom_engine::{Form, RolloutEngineSettings, ServerSettings};
use serde::Serialize;

use super::transfer;
pub(crate) use functions::{eval_prefix, function_roles};
pub use offer::{Offer, Slots};

/// Largest fraction of a GPU's memory that servers may take where ranks use the same GPU.
const SHARED_MEMORY: f64 = 0.5;

/// Devices of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Number of the machine.
    pub machine: usize,
    /// Its slots there; cores may be those of several processes. Processes of functions have none, those of reward models have.
    pub slots: Range<usize>,
}

/// Equal processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedRole {
    /// `policy rank`, `critic rank`, `prm rank`, `server`, `reward NAME` or `environment`, with `eval` before those of the
    /// evaluation.
    pub role: String,
    /// Number of processes.
    pub processes: usize,
    /// Place of each process.
    pub places: Vec<Place>,
}

/// The processes of a stage outside of this one, with their devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Devices of the machines.
    pub offer: Offer,
    /// The processes.
    pub roles: Vec<PlacedRole>,
    /// Form in which ranks hand weights to servers.
    pub weights: Form,
}

/// A stage that does not fit the devices of the machines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
pub enum PlacementError {
    /// It needs more devices than there are.
    #[error("placement: {ranks} ranks and {servers} need {needed} GPUs; {offered}")]
    #[diagnostic(help(
        "lower `trainer.ranks`, `rollout.replicas` or `rollout.tensor_parallel`; with `rollout.memory` of at most 0.5, \
         servers share the GPUs of the ranks"
    ))]
    Devices {
        /// Ranks with GPUs of their own.
        ranks: usize,
        /// Servers and the GPUs of each, which are on one machine.
        servers: String,
        /// GPUs of all.
        needed: usize,
        /// GPUs of the machines, in words.
        offered: String,
    },
    /// A reward model needs more devices than the ranks leave.
    #[error(
        "placement: {processes} processes of `{role}` after {ranks} ranks and reward models need {needed} GPUs; {offered}"
    )]
    #[diagnostic(help(
        "lower `ranks` of the reward model or `trainer.ranks`; with `colocate = true` it uses the GPUs of the trainer's ranks"
    ))]
    RewardModel {
        /// Its role.
        role: String,
        /// Its processes.
        processes: usize,
        /// Processes on the GPUs before.
        ranks: usize,
        /// GPUs of all.
        needed: usize,
        /// GPUs of the machines, in words.
        offered: String,
    },
    /// Weights cannot reach the servers in the requested way.
    #[error("`rollout.weights = \"{form}\"` is not possible: {reason}")]
    #[diagnostic(help("remove `rollout.weights`: folders are always possible"))]
    Weights {
        /// The way.
        form: Form,
        /// Reason.
        reason: &'static str,
    },
    /// Server and trainer cannot take turns.
    #[error("`rollout.sleep = true` is not possible: {reason}")]
    #[diagnostic(help("remove `rollout.sleep`"))]
    Sleep {
        /// Reason.
        reason: &'static str,
    },
}

impl Placement {
    /// The placement of a stage; none if it uses the embedded engines alone.
    pub fn of(config: &Config, stage: &Stage, offer: &Offer) -> Result<Option<Self>, PlacementError> {
        let most_ranks = most_ranks(config);
        let weights = match transfer::form(stage, most_ranks, offer)? {
            Form::Adapter if !config.policies.is_empty() => Form::Folder,
            form => form,
        };
        let mut roles = Vec::new();
        for (role, places) in model_places(stage, offer)? {
            roles.push(PlacedRole { role: role.to_owned(), processes: places.len(), places });
        }
        if let Some(servers) = stage.rollout.as_ref().and_then(|rollout| started(&rollout.engine)) {
            let places = server_places(servers, most_ranks, offer)?;
            roles.push(PlacedRole { role: "server".to_owned(), processes: servers.replicas, places });
        }
        roles.extend(function_roles(config, stage, offer)?);
        Ok((!roles.is_empty()).then_some(Self { offer: offer.clone(), roles, weights }))
    }
}

/// Ranks of each model of a stage; 0 if the embedded engine trains.
pub(super) fn ranks(stage: &Stage) -> usize {
    stage.trainer.ranks().map_or(0, |settings| settings.ranks)
}

/// Models of a stage that ranks train.
fn models(stage: &Stage) -> Vec<&'static str> {
    let critic = stage.algorithm.critic.as_ref().is_some_and(|critic| critic.backbone == Backbone::Own);
    let models =
        [("policy rank", true), ("critic rank", critic), ("prm rank", stage.algorithm.prm.is_some())];
    models.into_iter().filter_map(|(role, is_used)| is_used.then_some(role)).collect()
}

/// Ranks of a stage with devices of their own.
fn ranks_apart(stage: &Stage) -> usize {
    let is_apart = stage.trainer.ranks().is_some_and(|settings| !settings.colocate_critic);
    ranks(stage) * if is_apart { models(stage).len() } else { 1 }
}

/// Ranks of trainers with devices of their own in the stage that has most: other processes stay on their GPUs from stage to stage.
fn ranks_of_run(config: &Config) -> usize {
    config.stages.iter().map(ranks_apart).max().unwrap_or(0)
}

/// Ranks before the servers: those of trainers, and those of reward models with devices of their own.
pub(super) fn most_ranks(config: &Config) -> usize {
    ranks_of_run(config) + functions::most_apart(config)
}

/// Places of the ranks of each model of a stage, by role: the same for all models, or devices of their own.
pub(super) fn model_places(
    stage: &Stage,
    offer: &Offer,
) -> Result<Vec<(&'static str, Vec<Place>)>, PlacementError> {
    let (ranks, models) = (ranks(stage), models(stage));
    if ranks == 0 {
        return Ok(Vec::new());
    }
    let places: Vec<Vec<Place>> = if ranks_apart(stage) == ranks {
        vec![rank_places(ranks, offer)?; models.len()]
    } else if offer.has_gpus() {
        let all = rank_places(ranks * models.len(), offer)?;
        all.chunks(ranks).map(<[Place]>::to_vec).collect()
    } else {
        (0..models.len()).map(|model| core_places(ranks, model, models.len(), offer)).collect()
    };
    Ok(models.into_iter().zip(places).collect())
}

/// Places of the ranks of one of several models on processors: machines of its own, or a part of the cores of each.
fn core_places(ranks: usize, model: usize, models: usize, offer: &Offer) -> Vec<Place> {
    let machines = offer.engines();
    let place = |rank| {
        if machines >= models {
            let own = model * machines / models..(model + 1) * machines / models;
            let machine = own.start + rank * own.len() / ranks;
            return Place { machine, slots: 0..offer.cores(machine) };
        }
        let machine = rank * machines / ranks;
        let cores = offer.cores(machine);
        let first = (model * cores / models).min(cores - 1);
        Place { machine, slots: first..((model + 1) * cores / models).max(first + 1) }
    };
    (0..ranks).map(place).collect()
}

/// Settings of the servers that a run starts.
fn started(engine: &RolloutEngineSettings) -> Option<&ServerSettings> {
    match engine {
        RolloutEngineSettings::Vllm(servers) | RolloutEngineSettings::Sglang(servers) => {
            servers.urls.is_empty().then_some(servers)
        }
        RolloutEngineSettings::Embedded(_) => None,
    }
}

/// Places of ranks: a GPU each, the first ones, or all cores of machines that have equally many ranks.
pub(super) fn rank_places(ranks: usize, offer: &Offer) -> Result<Vec<Place>, PlacementError> {
    if !offer.has_gpus() {
        let machines = offer.engines();
        let place = |rank| {
            let machine = rank * machines / ranks;
            Place { machine, slots: 0..offer.cores(machine) }
        };
        return Ok((0..ranks).map(place).collect());
    }
    let places: Vec<Place> =
        offer.gpus().take(ranks).map(|(machine, gpu)| Place { machine, slots: gpu..gpu + 1 }).collect();
    if places.len() == ranks {
        return Ok(places);
    }
    let (needed, offered) = (ranks, offer.text());
    Err(PlacementError::Devices { ranks, servers: "no servers".to_owned(), needed, offered })
}

/// Places of the servers: GPUs after those of the ranks, the same GPUs if their memory suffices for both, or shares of the
/// cores of the last machines.
pub(super) fn server_places(
    settings: &ServerSettings,
    ranks: usize,
    offer: &Offer,
) -> Result<Vec<Place>, PlacementError> {
    let replicas = settings.replicas;
    if !offer.has_gpus() {
        return Ok(core_shares(settings, offer));
    }
    if !settings.sleep {
        let apart = gpu_groups(settings, ranks, offer);
        if let Some(apart) = apart.filter(|_| ranks <= offer.gpus().count()) {
            return Ok(apart.into_iter().take(replicas).collect());
        }
    }
    let on_gpu = settings.memory_fraction(true) * settings.servers_per_gpu().min(replicas) as f64;
    let has_room = on_gpu <= SHARED_MEMORY || settings.sleep;
    let shared = gpu_groups(settings, 0, offer).filter(|_| has_room && ranks <= offer.gpus().count());
    if let Some(shared) = shared {
        return Ok(shared.into_iter().take(replicas).collect());
    }
    let needed = ranks + gpus_of_servers(settings);
    Err(PlacementError::Devices { ranks, servers: servers_text(settings), needed, offered: offer.text() })
}

/// Devices of each server, those of a list that do not run included: they keep their devices.
fn sizes(settings: &ServerSettings) -> Vec<usize> {
    let listed = settings.tensor_parallel.numbers().len();
    (0..settings.replicas.max(listed)).map(|server| settings.tensor_parallel.of(server)).collect()
}

/// GPUs of all servers.
fn gpus_of_servers(settings: &ServerSettings) -> usize {
    sizes(settings).iter().sum::<usize>().div_ceil(settings.servers_per_gpu())
}

/// `2 servers × 2 GPUs`, `servers of 2 + 1 + 1 GPUs`, `3 servers × 0.5 GPUs`
fn servers_text(settings: &ServerSettings) -> String {
    let sizes = sizes(settings);
    if let Some(share) = settings.gpus_per_replica {
        return format!("{} servers × {share} GPUs", sizes.len());
    }
    if sizes.iter().all(|size| *size == sizes[0]) {
        return format!("{} servers × {} GPUs", sizes.len(), sizes[0]);
    }
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    format!("servers of {} GPUs", sizes.join(" + "))
}

/// GPUs of each server, on one machine each, without the first `skipped` GPUs; `None` if there are too few. The largest of a
/// list are placed first, so that the others use what is left over.
fn gpu_groups(settings: &ServerSettings, skipped: usize, offer: &Offer) -> Option<Vec<Place>> {
    let (sizes, per_gpu) = (sizes(settings), settings.servers_per_gpu());
    let mut free: Vec<Range<usize>> = Vec::new();
    for (machine, gpu) in offer.gpus().skip(skipped) {
        free.resize(free.len().max(machine + 1), 0..0);
        let start = if free[machine].is_empty() { gpu } else { free[machine].start };
        free[machine] = start..gpu + 1;
    }
    if per_gpu > 1 {
        let gpus =
            free.into_iter().enumerate().flat_map(|(machine, gpus)| gpus.map(move |gpu| (machine, gpu)));
        let shares = gpus.flat_map(|gpu| std::iter::repeat_n(gpu, per_gpu)).take(sizes.len());
        let places: Vec<Place> =
            shares.map(|(machine, gpu)| Place { machine, slots: gpu..gpu + 1 }).collect();
        return (places.len() == sizes.len()).then_some(places);
    }
    let listed = settings.tensor_parallel.numbers().len();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order[..listed.min(sizes.len())].sort_by_key(|&server| std::cmp::Reverse(sizes[server]));
    let mut places = vec![None; sizes.len()];
    for server in order {
        let size = sizes[server];
        let machine = free.iter().position(|gpus| gpus.len() >= size)?;
        let start = free[machine].start;
        free[machine].start = start + size;
        places[server] = Some(Place { machine, slots: start..start + size });
    }
    places.into_iter().collect()
}

/// Shares of cores, by the sizes of the servers. Servers are on the last machines first: the first one has the controller.
fn core_shares(settings: &ServerSettings, offer: &Offer) -> Vec<Place> {
    let (replicas, machines) = (settings.replicas, offer.engines());
    let machine_of = |replica: usize| machines - 1 - replica * machines / replicas;
    let share = |replica: usize| {
        let machine = machine_of(replica);
        let cores = offer.cores(machine);
        let sum = |servers: Range<usize>| -> usize {
            let there = servers.filter(|&other| machine_of(other) == machine);
            there.map(|other| settings.tensor_parallel.of(other)).sum()
        };
        let (all, before, with) = (sum(0..replicas), sum(0..replica), sum(0..replica + 1));
        let first = (before * cores / all).min(cores - 1);
        Place { machine, slots: first..(with * cores / all).max(first + 1) }
    };
    (0..replicas).map(share).collect()
}

#[cfg(test)]
mod tests;
