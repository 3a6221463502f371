//! Ranks of a trainer as processes of the run's machines.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rloom_cluster::{Machines, Node, Process, ProcessSpec};
use rloom_remote::{RankCommand, RankEnd, RankLauncher, RankProcess};

use super::placement::Place;

/// Longest wait for an answer of a node.
const NODE: Duration = Duration::from_secs(30);

/// Starts ranks on the machines of a run.
#[derive(Debug)]
pub(crate) struct NodeRanks {
    pub(crate) machines: Machines,
    /// Place of each rank.
    pub(crate) places: Vec<Place>,
    /// True if the places are GPUs.
    pub(crate) has_gpus: bool,
    /// The Python interpreter.
    pub(crate) python: PathBuf,
    /// The model that the ranks train, for their names in messages.
    pub(crate) model: &'static str,
    /// Folder for files with the output of each rank.
    pub(crate) logs: PathBuf,
}

impl NodeRanks {
    fn node(&self, rank: usize) -> io::Result<Node> {
        let machine = self.places.get(rank).map_or(0, |place| place.machine);
        self.machines.node(machine).map_err(io::Error::other)
    }

    /// Variables by which ranks on several machines find each other and their devices.
    fn network(&self, rank: usize, node: &Node) -> io::Result<Vec<(String, String)>> {
        if self.machines.members().is_none() {
            return Ok(Vec::new());
        }
        let offer = node.describe(Instant::now() + NODE).map_err(io::Error::other)?;
        // Of several interfaces, PyTorch would take the one that the hostname belongs to.
        let names = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"];
        let mut variables: Vec<(String, String)> =
            names.iter().map(|name| ((*name).to_owned(), offer.interface.clone())).collect();
        if let Some(place) = self.places.get(rank).filter(|_| self.has_gpus) {
            variables.push(("CUDA_VISIBLE_DEVICES".to_owned(), offer.visible_gpus(&place.slots)));
        }
        Ok(variables)
    }
}

impl RankLauncher for NodeRanks {
    fn listening_ip(&self) -> IpAddr {
        self.machines.listening_ip()
    }

    fn trainer_ip(&self, rank: usize) -> io::Result<IpAddr> {
        match self.machines.members() {
            None => Ok(self.listening_ip()),
            Some(_) => self.node(rank)?.controller_ip().map_err(io::Error::other),
        }
    }

    fn first_rank_ip(&self) -> io::Result<IpAddr> {
        match self.machines.members() {
            None => Ok(self.listening_ip()),
            Some(_) => Ok(self.node(0)?.describe(Instant::now() + NODE).map_err(io::Error::other)?.address),
        }
    }

    fn start(&self, command: &RankCommand) -> io::Result<Box<dyn RankProcess>> {
        let (model, rank) = (self.model, command.rank);
        let node = self.node(rank)?;
        let mut environment: std::collections::BTreeMap<_, _> = command.environment.iter().cloned().collect();
        environment.extend(self.network(rank, &node)?);
        let spec = ProcessSpec {
            name: format!("{model} rank {rank}"),
            role: "rank".to_owned(),
            program: self.python.display().to_string(),
            arguments: command.arguments.clone(),
            environment,
            directory: None,
            log: Some(self.logs.join(format!("{model}-rank-{rank}.log"))),
        };
        let process = node.start(&spec, Instant::now() + NODE).map_err(io::Error::other)?;
        Ok(Box::new(NodeRank(process)))
    }
}

/// A rank on a node.
struct NodeRank(Process);

impl fmt::Debug for NodeRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl RankProcess for NodeRank {
    fn ended(&mut self) -> Option<RankEnd> {
        match self.0.exited() {
            Ok(exit) => exit.map(|exit| RankEnd { status: exit.reason(), was_killed: exit.signal.is_some() }),
            Err(lost) => Some(RankEnd { status: lost.to_string(), was_killed: true }),
        }
    }

    fn request_stacks(&self) {
        // A rank without stacks is killed like the others.
        let _ = self.0.request_stacks(Instant::now() + NODE);
    }

    fn kill(&mut self) {
        // A node that does not answer kills its processes when it misses the run.
        let _ = self.0.stop(Duration::ZERO, Instant::now() + NODE);
    }

    fn stderr(&self) -> String {
        match self.0.exited() {
            Ok(Some(exit)) => exit.output,
            _ => self.0.output(Instant::now() + NODE).unwrap_or_default(),
        }
    }
}
