//! Machines and devices of the processes of a stage.

use std::num::NonZero;
use std::ops::Range;

use rloom_algo::Backbone;
use rloom_config::{Config, Stage};
use rloom_engine::{Form, RolloutEngineSettings, ServerSettings};
use serde::Serialize;

use super::transfer;

/// Largest fraction of a GPU's memory that servers may take where ranks use the same GPU.
const SHARED_MEMORY: f64 = 0.5;

/// Devices of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slots {
    /// NVIDIA GPUs.
    Gpus(usize),
    /// Processor cores, which processes share.
    Cores(usize),
}

impl Slots {
    /// The GPUs of this machine, or its cores if it has none.
    pub fn of_machine() -> Self {
        match rloom_remote::gpus() {
            0 => Self::Cores(std::thread::available_parallelism().map_or(1, NonZero::get)),
            gpus => Self::Gpus(gpus),
        }
    }
}

/// Machines of a run and their devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Offer(Vec<Slots>);

impl From<Slots> for Offer {
    fn from(machine: Slots) -> Self {
        Self(vec![machine])
    }
}

impl Offer {
    /// The devices of this machine.
    pub fn of_machine() -> Self {
        Slots::of_machine().into()
    }

    /// The devices that a run will have, as far as that is known before its machines connect: those of its settings, or as
    /// many on each machine as this one has.
    pub fn expected(config: &Config) -> Self {
        let Some(cluster) = &config.cluster else { return Self::of_machine() };
        let slots = match (cluster.gpus_per_node, cluster.cpus_per_node, Slots::of_machine()) {
            (Some(gpus), _, _) if gpus > 0 => Slots::Gpus(gpus),
            (_, Some(cores), Slots::Cores(_)) | (Some(_), Some(cores), _) => Slots::Cores(cores),
            (_, _, own) => own,
        };
        Self(vec![slots; cluster.nodes])
    }

    /// The devices of several machines, by their numbers.
    pub fn of_machines(machines: Vec<Slots>) -> Self {
        Self(machines)
    }

    /// Devices by machine.
    pub fn machines(&self) -> &[Slots] {
        &self.0
    }

    /// True if some machine has GPUs: engines then use GPUs alone.
    pub fn has_gpus(&self) -> bool {
        self.gpus().next().is_some()
    }

    /// All GPUs, those of the first machine first.
    fn gpus(&self) -> impl Iterator<Item = (usize, usize)> {
        let gpus_of = |slots: &Slots| if let Slots::Gpus(gpus) = *slots { gpus } else { 0 };
        self.0
            .iter()
            .enumerate()
            .flat_map(move |(machine, slots)| (0..gpus_of(slots)).map(move |gpu| (machine, gpu)))
    }

    /// `this machine offers 6`, `the machines offer 4 + 2`
    fn text(&self) -> String {
        let counts = self.0.iter().map(|slots| match slots {
            Slots::Gpus(gpus) => gpus.to_string(),
            Slots::Cores(_) => "0".to_owned(),
        });
        let counts: Vec<String> = counts.collect();
        match counts.as_slice() {
            [only] => format!("this machine offers {only}"),
            several => format!("the machines offer {}", several.join(" + ")),
        }
    }

    /// Cores of a machine.
    fn cores(&self, machine: usize) -> usize {
        match self.0.get(machine) {
            Some(Slots::Cores(cores)) => (*cores).max(1),
            _ => 1,
        }
    }
}

/// Devices of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Number of the machine.
    pub machine: usize,
    /// Its slots there; cores may be those of several processes.
    pub slots: Range<usize>,
}

/// Equal processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedRole {
    /// `policy rank`, `critic rank`, `prm rank` or `server`.
    pub role: &'static str,
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
    #[error(
        "placement: {ranks} ranks and {replicas} servers × {tensor_parallel} GPUs need {needed} GPUs; {offered}"
    )]
    #[diagnostic(help(
        "lower `trainer.ranks`, `rollout.replicas` or `rollout.tensor_parallel`; with `rollout.memory` of at most 0.5, \
         servers share the GPUs of the ranks"
    ))]
    Devices {
        /// Ranks of a model.
        ranks: usize,
        /// Servers.
        replicas: usize,
        /// GPUs of a server, which are on one machine.
        tensor_parallel: usize,
        /// GPUs of all.
        needed: usize,
        /// GPUs of the machines, in words.
        offered: String,
    },
    /// Weights cannot reach the servers in the way that was asked for.
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
        let weights = transfer::form(stage, most_ranks, offer)?;
        let ranks = ranks(stage);
        let mut roles = Vec::new();
        if ranks > 0 {
            let critic =
                stage.algorithm.critic.as_ref().is_some_and(|critic| critic.backbone == Backbone::Own);
            let models =
                [("policy rank", true), ("critic rank", critic), ("prm rank", stage.algorithm.prm.is_some())];
            for (role, _) in models.into_iter().filter(|(_, is_used)| *is_used) {
                roles.push(PlacedRole { role, processes: ranks, places: rank_places(ranks, offer)? });
            }
        }
        if let Some(servers) = stage.rollout.as_ref().and_then(|rollout| started(&rollout.engine)) {
            let places = server_places(servers, most_ranks, offer)?;
            roles.push(PlacedRole { role: "server", processes: servers.replicas, places });
        }
        Ok((!roles.is_empty()).then_some(Self { offer: offer.clone(), roles, weights }))
    }
}

/// Ranks of each model of a stage; 0 if the embedded engine trains.
pub(super) fn ranks(stage: &Stage) -> usize {
    stage.trainer.ranks().map_or(0, |settings| settings.ranks)
}

/// Ranks of each model of the stage that has most: servers stay on their GPUs from stage to stage.
pub(super) fn most_ranks(config: &Config) -> usize {
    config.stages.iter().map(ranks).max().unwrap_or(0)
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

/// Places of the ranks of a model: a GPU each, the first ones, or all cores of machines that have equally many ranks.
pub(super) fn rank_places(ranks: usize, offer: &Offer) -> Result<Vec<Place>, PlacementError> {
    if !offer.has_gpus() {
        let machines = offer.0.len();
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
    Err(PlacementError::Devices { ranks, replicas: 0, tensor_parallel: 1, needed, offered })
}

/// Places of the servers: GPUs after those of the ranks, the same GPUs if their memory suffices for both, or shares of the
/// cores of the last machines.
pub(super) fn server_places(
    settings: &ServerSettings,
    ranks: usize,
    offer: &Offer,
) -> Result<Vec<Place>, PlacementError> {
    let ServerSettings { replicas, tensor_parallel, .. } = *settings;
    if !offer.has_gpus() {
        return Ok(core_shares(replicas, offer));
    }
    if !settings.sleep {
        let apart = gpu_groups(offer, ranks, tensor_parallel);
        if ranks <= offer.gpus().count() && apart.len() >= replicas {
            return Ok(apart.into_iter().take(replicas).collect());
        }
    }
    let has_room = settings.memory_fraction(true) <= SHARED_MEMORY || settings.sleep;
    let shared = gpu_groups(offer, 0, tensor_parallel);
    if has_room && ranks <= offer.gpus().count() && shared.len() >= replicas {
        return Ok(shared.into_iter().take(replicas).collect());
    }
    let needed = ranks + replicas * tensor_parallel;
    Err(PlacementError::Devices { ranks, replicas, tensor_parallel, needed, offered: offer.text() })
}

/// Groups of `width` GPUs on one machine each, without the first `skipped` GPUs.
fn gpu_groups(offer: &Offer, skipped: usize, width: usize) -> Vec<Place> {
    let mut groups: Vec<Place> = Vec::new();
    for (machine, gpu) in offer.gpus().skip(skipped) {
        match groups.last_mut() {
            Some(last) if last.machine == machine && last.slots.len() < width => last.slots.end = gpu + 1,
            Some(last) if last.slots.len() < width => *last = Place { machine, slots: gpu..gpu + 1 },
            _ => groups.push(Place { machine, slots: gpu..gpu + 1 }),
        }
    }
    groups.retain(|group| group.slots.len() == width);
    groups
}

/// Shares of cores. Servers are on the last machines first: the first one has the controller.
fn core_shares(replicas: usize, offer: &Offer) -> Vec<Place> {
    let machines = offer.0.len();
    let machine_of = |replica: usize| machines - 1 - replica * machines / replicas;
    let share = |replica: usize| {
        let machine = machine_of(replica);
        let cores = offer.cores(machine);
        let servers = (0..replicas).filter(|&other| machine_of(other) == machine).count();
        let index = (0..replica).filter(|&other| machine_of(other) == machine).count();
        let first = (index * cores / servers).min(cores - 1);
        Place { machine, slots: first..((index + 1) * cores / servers).max(first + 1) }
    };
    (0..replicas).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = r#"
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 24
[data]
generator = "arithmetic"
[reward]
components = [{ kind = "exact" }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "ppo"
steps = 1
groups_per_batch = 2
"#;

    /// Roles of a stage of PPO, whose critic has a backbone of its own.
    fn roles(overrides: &[&str], machine: Slots) -> Result<Vec<PlacedRole>, PlacementError> {
        let config = rloom_config::Config::from_text("recipe.toml", RECIPE, overrides);
        let config = config.map_err(|errors| errors.to_string()).unwrap();
        Ok(Placement::of(&config, &config.stages[0], &machine.into())?
            .map(|placement| placement.roles)
            .unwrap_or_default())
    }

    #[test]
    fn each_rank_has_a_gpu_or_all_cores() {
        let torch = ["trainer.backend=torch", "trainer.ranks=2"];
        let both = [&torch[..], &["rollout.engine=vllm", "rollout.tensor_parallel=2"]].concat();
        let role = |role, slots: &[Range<usize>]| {
            let places = slots.iter().map(|slots| Place { machine: 0, slots: slots.clone() }).collect();
            PlacedRole { role, processes: slots.len(), places }
        };
        assert_eq!(roles(&[], Slots::Gpus(0)), Ok(Vec::new()));
        let ranks = ["policy rank", "critic rank"].map(|name| role(name, &[0..1, 1..2]));
        assert_eq!(roles(&torch, Slots::Gpus(2)).as_deref(), Ok(&ranks[..]));
        let error = roles(&torch, Slots::Gpus(1)).unwrap_err().to_string();
        assert!(error.contains("need 2 GPUs; this machine offers 1"), "{error}");
        let [policy, critic] = ranks;
        assert_eq!(
            roles(&both, Slots::Gpus(4)),
            Ok(vec![policy, critic, role("server", std::slice::from_ref(&(2..4)))])
        );
        roles(&both, Slots::Gpus(3)).unwrap_err();
        let on_cores = roles(&torch, Slots::Cores(4)).unwrap();
        assert_eq!(on_cores[0], role("policy rank", &[0..4, 0..4]));
    }

    fn servers(replicas: usize, tensor_parallel: usize, memory: f64) -> ServerSettings {
        ServerSettings { replicas, tensor_parallel, memory: Some(memory), ..ServerSettings::default() }
    }

    #[test]
    fn servers_come_after_the_ranks_or_share_their_gpus() {
        let settings = servers(2, 2, 0.9);
        let of = |settings: &ServerSettings, ranks, gpus| -> Result<Vec<_>, _> {
            let places = server_places(settings, ranks, &Slots::Gpus(gpus).into())?;
            Ok::<_, PlacementError>(places.into_iter().map(|place| place.slots).collect())
        };
        assert_eq!(of(&settings, 4, 8).unwrap(), [4..6, 6..8]);
        let error: PlacementError = of(&settings, 4, 6).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PlacementError::Devices { .. }));
        assert!(text.contains("4 ranks and 2 servers × 2 GPUs need 8 GPUs; this machine offers 6"), "{text}");
        // The hint: fewer of each, or shared GPUs.
        for (fewer, ranks) in [(&settings, 2), (&servers(1, 2, 0.9), 4), (&servers(2, 1, 0.9), 4)] {
            of(fewer, ranks, 6).unwrap();
        }
        assert_eq!(of(&servers(2, 2, 0.45), 4, 6).unwrap(), [0..2, 2..4]);
        assert!(of(&servers(2, 2, 0.45), 4, 3).is_err());
        assert_eq!(of(&servers(1, 1, 0.45), 1, 1).unwrap().first(), Some(&(0..1)));
    }

    #[test]
    fn servers_divide_the_cores() {
        let of = |replica: usize, replicas, cores| {
            let places = server_places(&servers(replicas, 1, 0.9), 0, &Slots::Cores(cores).into()).unwrap();
            places[replica].slots.clone()
        };
        assert_eq!((of(0, 2, 4), of(1, 2, 4)), (0..2, 2..4));
        assert_eq!((of(0, 3, 2), of(1, 3, 2), of(2, 3, 2)), (0..1, 0..1, 1..2));
        assert_eq!(of(0, 1, 2), 0..2);
    }
    fn places(places: Result<Vec<Place>, PlacementError>) -> Vec<(usize, Range<usize>)> {
        places.unwrap().into_iter().map(|place| (place.machine, place.slots)).collect()
    }

    #[test]
    fn servers_have_all_their_gpus_on_one_machine() {
        let offer = Offer::of_machines(vec![Slots::Gpus(3), Slots::Cores(64), Slots::Gpus(4)]);
        assert_eq!(places(rank_places(4, &offer)), [(0, 0..1), (0, 1..2), (0, 2..3), (2, 0..1)]);
        assert_eq!(places(server_places(&servers(1, 2, 0.9), 2, &offer)), [(2, 0..2)]);
        assert_eq!(places(server_places(&servers(2, 2, 0.9), 1, &offer)), [(0, 1..3), (2, 0..2)]);
        assert_eq!(server_places(&servers(3, 2, 0.9), 1, &offer).map(|places| places.len()), Ok(3));
        // One GPU of the first machine is left over.
        let error = server_places(&servers(3, 2, 0.9), 2, &offer).unwrap_err().to_string();
        assert!(error.contains("need 8 GPUs; the machines offer 3 + 0 + 4"), "{error}");
        assert_eq!(places(server_places(&servers(3, 2, 0.5), 4, &offer)), [(0, 0..2), (2, 0..2), (2, 2..4)]);
        rank_places(8, &offer).unwrap_err();
    }

    #[test]
    fn processes_on_cores_are_spread_over_the_machines() {
        let offer = Offer::of_machines(vec![Slots::Cores(4), Slots::Cores(2)]);
        assert_eq!(places(rank_places(2, &offer)), [(0, 0..4), (1, 0..2)]);
        assert_eq!(places(rank_places(3, &offer)), [(0, 0..4), (0, 0..4), (1, 0..2)]);
        assert_eq!(places(server_places(&servers(1, 1, 0.9), 2, &offer)), [(1, 0..2)]);
        assert_eq!(places(server_places(&servers(3, 1, 0.9), 2, &offer)), [(1, 0..1), (1, 1..2), (0, 0..4)]);
    }
}
