//! Adapters of a replica: one for each version that its requests use.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rloom_core::OnUpdate;
use rloom_engine::PolicyLabel;
use tokio::time::Instant;

use super::local::LocalFolder;
use super::replica::{Failure, Supervisor};
use super::state::Target;
use crate::error::ServerError;
use crate::server::{Description, Pause, name_of};
use crate::vllm::VllmServer;

/// Adapters that a server has, with their folders: it reads one again that it had no more room for.
#[derive(Default)]
pub(super) struct Adapters(Mutex<BTreeMap<PolicyLabel, LocalFolder>>);

impl Adapters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PolicyLabel, LocalFolder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervisor {
    /// Refuses a server that cannot serve adapters of a rank over the base.
    pub(super) fn check_adapters(server: &Description, rank: usize) -> Result<(), Failure> {
        let has = server.max_adapter_rank;
        if has == 0 {
            return Err(Failure::Unsuitable(format!(
                "serves no adapters: start it with --enable-lora --max-lora-rank {} and \
                 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or set `rollout.weights = \"merged\"`",
                crate::max_lora_rank(rank).unwrap_or(rank)
            )));
        }
        if has < rank {
            return Err(Failure::Unsuitable(format!(
                "serves adapters up to rank {has}, and {rank} is needed"
            )));
        }
        if server.replaced_by.is_empty() {
            return Ok(());
        }
        let other = &server.replaced_by;
        Err(Failure::Failed(format!(
            "it has the weights {other} instead of the base that it was started with"
        )))
    }

    /// Removes what an earlier service has left. Their requests are sent again.
    pub(super) async fn forget_adapters(&self) -> Result<(), ServerError> {
        self.adapters.lock().clear();
        let Some(server) = self.server.vllm_client() else { return Ok(()) };
        for name in server.adapters(self.control()).await? {
            server.unload_adapter(&name, self.control()).await?;
        }
        Ok(())
    }

    /// Follows the newest load or release. Requests in flight end under their own adapter, unless the update interrupts them.
    pub(super) async fn update_adapter(
        &self,
        target: Option<&Target>,
        local: Option<LocalFolder>,
        generation: u64,
    ) -> Result<(), Failure> {
        if let Some(target) = target {
            let interrupts = matches!(target.on_update, OnUpdate::Recompute | OnUpdate::Abort);
            self.begin_update(target, interrupts);
            self.add_adapter(target, local, interrupts.then_some(Pause::Abort)).await?;
        } else if !self.is_drained(generation).await {
            return Ok(());
        }
        // No request begins before the replica is ready.
        self.unload_unused(target.map(|target| target.published.label())).await?;
        self.ready(target, generation);
        Ok(())
    }

    /// Loads the adapter of a target in addition to those in use, and makes sure that it is the trainer's.
    pub(super) async fn add_adapter(
        &self,
        target: &Target,
        local: Option<LocalFolder>,
        pause: Option<Pause>,
    ) -> Result<(), Failure> {
        let label = target.published.label();
        let loaded = self.load_adapter(label, local, pause).await.map_err(|error| error.to_string());
        let checked = match loaded {
            Ok(()) => self.check_adapter(label).await,
            failed => failed,
        };
        let verified = match checked {
            Ok(()) => self.verify(target, label).await,
            failed => failed,
        };
        verified.map_err(|problem| Failure::Failed(format!("loading {label}: {problem}")))
    }

    async fn load_adapter(
        &self,
        label: PolicyLabel,
        local: Option<LocalFolder>,
        pause: Option<Pause>,
    ) -> Result<(), ServerError> {
        if let Some(pause) = pause {
            self.server.pause(pause, self.control()).await?;
        }
        let is_new = !self.adapters.lock().contains_key(&label);
        if is_new && let Some((local, server)) = local.zip(self.server.vllm_client()) {
            let deadline = Instant::now() + self.shared.timings.load;
            server.load_adapter(local.path(), label, deadline).await?;
            self.adapters.lock().insert(label, local);
        }
        if pause.is_some() {
            self.server.resume(self.control()).await?;
        }
        Ok(())
    }

    /// Checks that the server says to have an adapter.
    pub(super) async fn check_adapter(&self, label: PolicyLabel) -> Result<(), String> {
        let Some(server) = self.server.vllm_client() else { return Ok(()) };
        let names = server.adapters(self.control()).await.map_err(|error| error.to_string())?;
        if names.contains(&name_of(label)) {
            return Ok(());
        }
        Err(format!("the server does not have {label}, but {names:?}"))
    }

    /// Unloads the adapters that no request uses, but for the one of requests to come.
    pub(super) async fn unload_unused(&self, current: Option<PolicyLabel>) -> Result<(), Failure> {
        let Some(server) = self.server.vllm_client().filter(|_| self.shared.adapter_rank.is_some()) else {
            return Ok(());
        };
        let used = self.shared.lock().labels_in_use(self.id);
        let is_used = |label: &PolicyLabel| used.contains(label) || current == Some(*label);
        let unused: Vec<_> = self.adapters.lock().keys().copied().filter(|label| !is_used(label)).collect();
        for label in unused {
            let unloaded = self.unload(server, label).await;
            unloaded.map_err(|error| Failure::Failed(format!("unloading {label}: {error}")))?;
        }
        Ok(())
    }

    async fn unload(&self, server: &VllmServer, label: PolicyLabel) -> Result<(), ServerError> {
        server.unload_adapter(&name_of(label), self.control()).await?;
        self.adapters.lock().remove(&label);
        Ok(())
    }
}
