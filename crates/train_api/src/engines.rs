//! Rollout engines, each with the weights that it samples from at the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_core::{PolicyId, PolicyVersion};
use rloom_embedded::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::{OnUpdate, RolloutEngine, RolloutSettings};
use rloom_model::Model;
use tokio::sync::{Mutex, Notify};

use crate::base::BaseModel;
use crate::problem::Failed;

/// Restarts of a lane whose thread has panicked.
const RESTARTS: u32 = 3;

/// The engines. There are at most as many as there may be different weights in use.
#[derive(Debug)]
pub(crate) struct Engines {
    slots: Mutex<Vec<Slot>>,
    most: usize,
    /// Told when an engine may have become idle.
    released: Arc<Notify>,
}

#[derive(Debug)]
struct Slot {
    engine: Arc<EmbeddedRolloutEngine>,
    weights: u64,
    users: Arc<AtomicUsize>,
}

/// Use of an engine. Its weights stay until all uses have ended.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) engine: Arc<EmbeddedRolloutEngine>,
    users: Arc<AtomicUsize>,
    released: Arc<Notify>,
}

impl Lease {
    fn new(slot: &Slot, released: &Arc<Notify>) -> Self {
        slot.users.fetch_add(1, Ordering::SeqCst);
        Self {
            engine: Arc::clone(&slot.engine),
            users: Arc::clone(&slot.users),
            released: Arc::clone(released),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
        self.released.notify_waiters();
    }
}

impl Engines {
    pub(crate) fn new(most: usize) -> Self {
        Self { slots: Mutex::default(), most: most.max(1), released: Arc::default() }
    }

    /// An engine with these weights; waits until one is idle.
    pub(crate) async fn lease(
        &self,
        base: &BaseModel,
        weights: u64,
        model: &Arc<Model>,
    ) -> Result<Lease, Failed> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // An engine that becomes idle from here on is noticed.
            released.as_mut().enable();
            if let Some(lease) = self.try_lease(base, weights, model).await? {
                return Ok(lease);
            }
            released.await;
        }
    }

    async fn try_lease(
        &self,
        base: &BaseModel,
        weights: u64,
        model: &Arc<Model>,
    ) -> Result<Option<Lease>, Failed> {
        let mut slots = self.slots.lock().await;
        if let Some(slot) = slots.iter().find(|slot| slot.weights == weights) {
            return Ok(Some(Lease::new(slot, &self.released)));
        }
        let is_idle = |slot: &Slot| slot.users.load(Ordering::SeqCst) == 0;
        let engine = match slots.iter().position(is_idle) {
            _ if slots.len() < self.most => Arc::new(create(base).await?),
            Some(idle) => slots.remove(idle).engine,
            None => return Ok(None),
        };
        // Idle: the load completes at once, and a failure drops the engine.
        let published = {
            let model = Arc::clone(model);
            let publish = move || publish_model(PolicyId::MAIN, PolicyVersion(weights), &model);
            blocking(publish).await?
        };
        engine.load(&published, OnUpdate::Finish).await?;
        let slot = Slot { engine, weights, users: Arc::default() };
        let lease = Lease::new(&slot, &self.released);
        slots.push(slot);
        Ok(Some(lease))
    }

    /// Forgets an engine that has failed.
    pub(crate) async fn discard(&self, lease: &Lease) {
        self.slots.lock().await.retain(|slot| !Arc::ptr_eq(&slot.engine, &lease.engine));
    }
}

async fn create(base: &BaseModel) -> Result<EmbeddedRolloutEngine, Failed> {
    let base = base.clone();
    let settings = RolloutSettings { lanes: 1, restarts: RESTARTS, ..RolloutSettings::default() };
    let create =
        move || EmbeddedRolloutEngine::new(base.model.config(), &base.ctx, &settings, Some(base.tokenizer));
    Ok(blocking(create).await??)
}

/// Runs what takes long outside of the thread that serves connections.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failed> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Failed::server("the operation failed"))
}
