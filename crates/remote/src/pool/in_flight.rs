//! Requests in flight of a replica that is updated or leaves.

use rloom_core::OnUpdate;
use tokio::time::{Instant, timeout_at};

use super::replica::Supervisor;
use super::state::{Phase, Target};
use crate::server::Pause;

impl Supervisor {
    /// Waits for the requests in flight. False if there is a newer load, which decides anew about them.
    pub(super) async fn is_drained(&self, generation: u64) -> bool {
        let drained = self.shared.until(|state| {
            let replica = state.replicas.get(&self.id)?;
            let is_newer = state.generation != generation || !replica.phase.is_live();
            (is_newer || replica.running.is_empty()).then_some(!is_newer)
        });
        drained.await
    }

    /// Takes the replica out of service for an update, which may interrupt its requests.
    pub(super) fn begin_update(&self, target: &Target, interrupts: bool) {
        self.shared.change(|state| {
            let Some(replica) = state.replicas.get_mut(&self.id) else { return };
            replica.set_phase(Phase::Updating);
            for request in replica.running.iter().filter(|_| interrupts) {
                if let Some(entry) = state.requests.get_mut(request) {
                    entry.interrupted = Some(target.on_update);
                }
            }
        });
    }

    /// Lets requests in flight finish for a while; the others are sent elsewhere.
    pub(super) async fn drain(&self) {
        let deadline = Instant::now() + self.shared.timings.drain;
        let finished = self.shared.until(|state| {
            let is_idle = state.replicas.get(&self.id).is_none_or(|replica| replica.running.is_empty());
            is_idle.then_some(())
        });
        if timeout_at(deadline, finished).await.is_ok() {
            return;
        }
        self.shared.change(|state| {
            let running = state.replicas.get(&self.id).map(|replica| replica.running.clone());
            for request in running.into_iter().flatten() {
                if let Some(entry) = state.requests.get_mut(&request) {
                    entry.interrupted = Some(OnUpdate::Recompute);
                }
            }
        });
        // Their answers have the tokens so far. What is not answered then is sent elsewhere from its last cut.
        if self.server.pause(Pause::Abort, self.control()).await.is_ok() {
            let finished = self.shared.until(|state| {
                let is_idle = state.replicas.get(&self.id).is_none_or(|replica| replica.running.is_empty());
                is_idle.then_some(())
            });
            drop(timeout_at(Instant::now() + self.shared.timings.answer, finished).await);
        }
    }
}
