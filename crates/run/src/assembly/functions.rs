//! Processes of functions and reward models on the machines of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_cluster::{Machines, Node, Process, ProcessSpec};
use rloom_config::Config;
use rloom_function::{Host, Hosted, HostedCommand, HostedProcess};

use super::placement::{Offer, Place, PlacementError, function_roles};

/// Longest wait for an answer of a node.
const NODE: Duration = Duration::from_secs(30);
/// Longest wait for the end of a killed process.
const KILLING: Duration = Duration::from_secs(5);

/// The machines of the functions of a run.
#[derive(Debug, Clone)]
pub struct FunctionHosts {
    machines: Machines,
    /// Place of each process, by stage and role.
    places: Arc<Vec<BTreeMap<String, Vec<Place>>>>,
    /// True if engines and reward models use GPUs.
    has_gpus: bool,
    /// All machines, those for functions first.
    order: Arc<Vec<usize>>,
    logs: PathBuf,
}

impl FunctionHosts {
    /// The machines of a configuration's functions and reward models; `None` if the controller starts all of them itself.
    pub(super) fn new(
        config: &Config,
        machines: &Machines,
        offer: &Offer,
        logs: &Path,
    ) -> Result<Option<Self>, PlacementError> {
        let of_stage = |stage| -> Result<BTreeMap<String, Vec<Place>>, PlacementError> {
            let roles = function_roles(config, stage, offer)?.into_iter();
            Ok(roles.map(|role| (role.role, role.places)).collect())
        };
        let places: Vec<_> = config.stages.iter().map(of_stage).collect::<Result<_, _>>()?;
        if places.iter().all(BTreeMap::is_empty) {
            return Ok(None);
        }
        let mut order: Vec<usize> = offer.for_functions().into_iter().map(|(machine, _)| machine).collect();
        let others: Vec<usize> = (0..machines.count()).filter(|machine| !order.contains(machine)).collect();
        order.extend(others);
        Ok(Some(Self {
            machines: machines.clone(),
            places: Arc::new(places),
            has_gpus: offer.has_gpus(),
            order: Arc::new(order),
            logs: logs.to_owned(),
        }))
    }

    /// Starts the processes of a role of a stage.
    pub(crate) fn of(&self, stage: usize, role: &str) -> Option<Arc<dyn Host>> {
        let places = self.places.get(stage)?.get(role)?.clone();
        Some(Arc::new(RoleHost { hosts: self.clone(), role: role.to_owned(), places }))
    }
}

/// Starts the processes of one role.
#[derive(Debug)]
struct RoleHost {
    hosts: FunctionHosts,
    role: String,
    /// Place of each process.
    places: Vec<Place>,
}

impl RoleHost {
    /// The machine of a process, followed by those that take its place while it is lost. Processes of a lost machine are spread;
    /// those with GPUs have no others.
    fn order(&self, worker: usize) -> Vec<usize> {
        let own = self.places.get(worker).map(|place| place.machine);
        if let Some(place) = self.places.get(worker).filter(|place| self.uses_gpus(place)) {
            return vec![place.machine];
        }
        let mut others: Vec<usize> =
            self.hosts.order.iter().copied().filter(|machine| Some(*machine) != own).collect();
        if !others.is_empty() {
            let first = worker % others.len();
            others.rotate_left(first);
        }
        own.into_iter().chain(others).collect()
    }

    fn uses_gpus(&self, place: &Place) -> bool {
        self.hosts.has_gpus && !place.slots.is_empty()
    }

    /// Variables by which a process finds its devices.
    fn devices(&self, worker: usize, node: &Node) -> Result<BTreeMap<String, String>, String> {
        let Some(place) = self.places.get(worker).filter(|place| !place.slots.is_empty()) else {
            return Ok(BTreeMap::new());
        };
        let (name, value) = if self.uses_gpus(place) {
            let offer = node.describe(Instant::now() + NODE).map_err(|error| error.to_string())?;
            ("CUDA_VISIBLE_DEVICES", offer.visible_gpus(&place.slots))
        } else {
            let there = self.places.iter().filter(|other| other.machine == place.machine).count();
            ("OMP_NUM_THREADS", (place.slots.len() / there).max(1).to_string())
        };
        Ok([(name.to_owned(), value)].into())
    }

    fn spec(&self, command: &HostedCommand, environment: BTreeMap<String, String>) -> ProcessSpec {
        let name = format!("{} {}", self.role, command.worker);
        let of_file = |c: char| if c.is_alphanumeric() || "-._".contains(c) { c } else { '-' };
        let file: String = name.chars().map(of_file).collect();
        ProcessSpec {
            name,
            role: if environment.is_empty() { "function" } else { "reward model" }.to_owned(),
            program: command.program.clone(),
            arguments: command.arguments.clone(),
            environment,
            directory: command.directory.clone(),
            log: Some(self.hosts.logs.join(format!("{file}.log"))),
        }
    }
}

impl Host for RoleHost {
    fn start(&self, command: &HostedCommand, goes_on: &dyn Fn() -> bool) -> Result<Hosted, String> {
        let order = self.order(command.worker);
        loop {
            let found = self.hosts.machines.first_of(&order, goes_on);
            let (_, node, machine) = found.ok_or("no machine of the run is connected")?;
            let spec = self.spec(command, self.devices(command.worker, &node)?);
            match node.start_relayed(&spec, Instant::now() + NODE) {
                Ok((process, stream)) => {
                    return Ok(Hosted { process: Arc::new(NodeFunction(process)), stream, machine });
                }
                // Another one takes its place.
                Err(_) if node.is_lost() => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// A process of a function on a node.
struct NodeFunction(Process);

impl fmt::Debug for NodeFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl HostedProcess for NodeFunction {
    fn kill(&self) {
        if self.ended().is_none() {
            // A node that does not answer kills its processes when it misses the run.
            let _ = self.0.stop(Duration::ZERO, Instant::now() + KILLING);
        }
    }

    fn ended(&self) -> Option<String> {
        match self.0.exited() {
            Ok(exit) => exit.map(|exit| exit.reason()),
            Err(lost) => Some(format!("was lost: {lost}")),
        }
    }

    fn stderr(&self) -> String {
        match self.0.exited() {
            Ok(Some(exit)) => exit.output,
            Ok(None) => self.0.output(Instant::now() + KILLING).unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    fn resident_memory(&self) -> Option<u64> {
        self.0.resident_memory(Instant::now() + NODE)
    }
}
