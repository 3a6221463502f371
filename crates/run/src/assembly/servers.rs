//! Inference servers that a run starts on its machines. Their number may change while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rloom_cluster::Machines;
use rloom_engine::{ServerSettings, TensorParallel, WeightFolder};
use rloom_remote::{
    AdapterSlots, EnvironmentKind, ModelLimits, ReplicaPool, Server, ServerCommand, ServerHost,
    ServerMirrors, ServerProcess, Slot,
};

use super::placement::{Offer, Place, server_places};
use crate::RunError;

/// Longest time until a server that is started answers.
const STARTING: Duration = Duration::from_mins(15);

/// What servers are started with, and where.
#[derive(Debug)]
pub(super) struct ServerPlan {
    pub(super) engine: EnvironmentKind,
    pub(super) settings: ServerSettings,
    pub(super) limits: ModelLimits,
    /// Adapters that they serve over their model.
    pub(super) adapters: Option<AdapterSlots>,
    /// The model that servers open first.
    pub(super) model: Arc<WeightFolder>,
    /// Folder for Python modules of the servers.
    pub(super) modules: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) machines: Machines,
    pub(super) offer: Offer,
    /// Ranks before the servers.
    pub(super) ranks: usize,
    /// Copies of published weights on the machines.
    pub(super) mirrors: Option<ServerMirrors>,
}

/// The servers of a pool.
#[derive(Debug)]
pub(crate) struct Servers {
    pool: Weak<ReplicaPool>,
    plan: ServerPlan,
    /// Replicas of the pool by the number of the server.
    running: Mutex<BTreeMap<usize, u32>>,
}

impl Servers {
    pub(super) fn new(pool: &Arc<ReplicaPool>, plan: ServerPlan) -> Self {
        Self { pool: Arc::downgrade(pool), plan, running: Mutex::default() }
    }

    /// True while the pool is in use.
    pub(crate) fn is_open(&self) -> bool {
        self.pool.strong_count() > 0
    }

    /// Number of servers.
    pub(crate) fn count(&self) -> usize {
        self.running().len()
    }

    /// True if there is a server with this number.
    pub(crate) fn has(&self, server: usize) -> bool {
        self.running().contains_key(&server)
    }

    /// Starts servers, or lets those with the highest numbers finish their requests and ends them, until there are `wanted`.
    pub(crate) fn scale(&self, wanted: usize) -> Result<(), RunError> {
        let Some(pool) = self.pool.upgrade() else { return Ok(()) };
        let settings = ServerSettings { replicas: wanted, ..self.plan.settings.clone() };
        settings.validate().map_err(|error| RunError::Scale { reason: error.to_string() })?;
        let places = server_places(&settings, self.plan.ranks, &self.plan.offer)?;
        for (server, place) in places.into_iter().enumerate() {
            if !self.running().contains_key(&server) {
                self.add(&pool, server, &place)?;
            }
        }
        let surplus: Vec<usize> = self.running().range(wanted..).map(|(&server, _)| server).collect();
        for server in surplus {
            self.drain(server);
        }
        Ok(())
    }

    /// Lets a server finish its requests, and ends it. False if there is no such server.
    pub(crate) fn drain(&self, server: usize) -> bool {
        let replica = self.running().remove(&server);
        if let Some((pool, replica)) = self.pool.upgrade().zip(replica) {
            // The pool does the work; the result is for those who wait.
            drop(pool.leave(replica));
        }
        replica.is_some()
    }

    fn add(&self, pool: &ReplicaPool, server: usize, place: &Place) -> Result<(), RunError> {
        let ServerPlan { engine, limits, adapters, machines, offer, logs, .. } = &self.plan;
        let (engine, limits, adapters) = (*engine, *limits, *adapters);
        let host = ServerHost::new(machines.clone(), place.machine, !offer.has_gpus())?;
        let url = host.url();
        let devices = self.plan.settings.tensor_parallel.of(server);
        let tensor_parallel = TensorParallel::Equal(devices);
        let settings = ServerSettings { tensor_parallel, ..self.plan.settings.clone() };
        let modules = self.plan.modules.clone();
        let (model, slot) = (Arc::clone(&self.plan.model), slot_of(place, offer.has_gpus()));
        let command = move |port| {
            if engine == EnvironmentKind::Sglang {
                return Ok(ServerCommand::sglang(&settings, limits, &slot, model.path(), port));
            }
            let command = ServerCommand::vllm(&settings, limits, &slot, model.path(), port, &modules)?;
            Ok(match adapters {
                Some(slots) => command.with_adapters(slots),
                None => command,
            })
        };
        let name = format!("replica {server}");
        let log = Some(logs.join(format!("replica-{server}.log")));
        let process =
            ServerProcess::new(host, name, Box::new(command), connect(engine, &url)?, STARTING, log);
        let process = match &self.plan.mirrors {
            Some(mirrors) => process.with_mirrors(mirrors.clone()),
            None => process,
        };
        let replica = pool.join_managed(connect(engine, &url)?, Arc::new(process), devices);
        self.running().insert(server, replica);
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<usize, u32>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client of a server.
pub(super) fn connect(engine: EnvironmentKind, url: &str) -> Result<Server, RunError> {
    let server = if engine == EnvironmentKind::Sglang { Server::sglang(url) } else { Server::vllm(url) };
    server.map_err(|error| RunError::ServerAddress { url: url.to_owned(), reason: error.to_string() })
}

/// Devices of a server.
fn slot_of(place: &Place, has_gpus: bool) -> Slot {
    if has_gpus {
        Slot::Gpus(place.slots.clone().map(|gpu| gpu as u32).collect())
    } else {
        Slot::Cores(place.slots.start, place.slots.end - 1)
    }
}
