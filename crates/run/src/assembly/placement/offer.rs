//! Machines of a run and their devices.

use std::num::NonZero;

use rloom_config::Config;
use serde::Serialize;

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
            0 => Self::Cores(own_cores()),
            gpus => Self::Gpus(gpus),
        }
    }
}

fn own_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Machines of a run and their devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Offer {
    machines: Vec<Slots>,
    /// Processor cores of each machine.
    #[serde(skip)]
    cores: Vec<usize>,
    /// Number of the first machines that engines may use; the others are for functions.
    #[serde(skip)]
    engines: usize,
}

impl From<Slots> for Offer {
    fn from(machine: Slots) -> Self {
        Self::of_machines(vec![machine])
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
        let cores = cluster.cpus_per_node.unwrap_or_else(own_cores);
        let of_cpu_node = cluster.cpus_per_cpu_node.unwrap_or_else(own_cores);
        let mut machines = vec![(slots, cores); cluster.nodes];
        machines.resize(cluster.machines(), (Slots::Cores(of_cpu_node), of_cpu_node));
        Self::of_cluster(machines, cluster.nodes)
    }

    /// The devices of several machines, by their numbers.
    pub fn of_machines(machines: Vec<Slots>) -> Self {
        let cores = |slots: Slots| if let Slots::Cores(cores) = slots { cores } else { 1 };
        let engines = machines.len();
        Self::of_cluster(machines.into_iter().map(|slots| (slots, cores(slots))).collect(), engines)
    }

    /// The devices and the number of cores of several machines, of which engines use the first ones.
    pub fn of_cluster(machines: Vec<(Slots, usize)>, engines: usize) -> Self {
        let (machines, cores) = machines.into_iter().unzip();
        Self { machines, cores, engines }
    }

    /// Devices by machine.
    pub fn machines(&self) -> &[Slots] {
        &self.machines
    }

    /// Number of machines that engines may use, which are the first ones.
    pub(super) fn engines(&self) -> usize {
        self.engines.min(self.machines.len())
    }

    /// True if some machine has GPUs: engines then use GPUs alone.
    pub fn has_gpus(&self) -> bool {
        self.gpus().next().is_some()
    }

    /// All GPUs that engines may use, those of the first machine first.
    pub(super) fn gpus(&self) -> impl Iterator<Item = (usize, usize)> {
        let gpus_of = |slots: &Slots| if let Slots::Gpus(gpus) = *slots { gpus } else { 0 };
        self.machines[..self.engines()]
            .iter()
            .enumerate()
            .flat_map(move |(machine, slots)| (0..gpus_of(slots)).map(move |gpu| (machine, gpu)))
    }

    /// `this machine offers 6`, `the machines offer 4 + 2`
    pub(super) fn text(&self) -> String {
        let counts = self.machines[..self.engines()].iter().map(|slots| match slots {
            Slots::Gpus(gpus) => gpus.to_string(),
            Slots::Cores(_) => "0".to_owned(),
        });
        let counts: Vec<String> = counts.collect();
        match counts.as_slice() {
            [only] if self.machines.len() == 1 => format!("this machine offers {only}"),
            several => format!("the machines offer {}", several.join(" + ")),
        }
    }

    /// Cores of a machine that engines use.
    pub(super) fn cores(&self, machine: usize) -> usize {
        match self.machines.get(machine) {
            Some(Slots::Cores(cores)) => (*cores).max(1),
            _ => 1,
        }
    }

    /// The machines for processes of functions, with their cores: those that engines do not use, else those without GPUs,
    /// else all.
    pub(crate) fn for_functions(&self) -> Vec<(usize, usize)> {
        let all = || self.cores.iter().map(|cores| (*cores).max(1)).enumerate();
        let is_for_functions = |machine: usize| machine >= self.engines();
        let has_no_gpus = |machine: usize| matches!(self.machines[machine], Slots::Cores(_));
        let first =
            |is: &dyn Fn(usize) -> bool| -> Vec<_> { all().filter(|(machine, _)| is(*machine)).collect() };
        [first(&is_for_functions), first(&has_no_gpus)]
            .into_iter()
            .find(|machines| !machines.is_empty())
            .unwrap_or_else(|| all().collect())
    }
}
