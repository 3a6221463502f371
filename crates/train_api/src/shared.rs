use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::base::BaseModel;
use crate::checkpoints::Checkpoints;
use crate::engines::Engines;
use crate::futures::Futures;
use crate::registry::Registry;
use crate::settings::TrainApiSettings;

/// What requests and the training thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: TrainApiSettings,
    pub(crate) base: BaseModel,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) futures: Futures,
    pub(crate) engines: Engines,
    registry: Mutex<Registry>,
    /// Bytes of training requests that wait.
    pub(crate) waiting_bytes: AtomicUsize,
    /// Sampling requests in flight.
    pub(crate) samples: AtomicUsize,
    /// Random streams given to sampling requests without a seed.
    pub(crate) streams: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        settings: TrainApiSettings,
        base: BaseModel,
        checkpoints: Checkpoints,
        nonce: u64,
    ) -> Self {
        Self {
            futures: Futures::new(nonce, &settings),
            engines: Engines::new(settings.max_engines),
            registry: Mutex::default(),
            waiting_bytes: AtomicUsize::new(0),
            samples: AtomicUsize::new(0),
            streams: AtomicU64::new(0),
            settings,
            base,
            checkpoints,
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a session: its models are freed, and what waits for them is forgotten. False if there is none.
    pub(crate) fn end_session(&self, session: &str) -> bool {
        let ended = self.registry().end(session);
        self.futures.end_session(session);
        ended
    }

    /// Ends sessions whose clients are silent and forgets old results.
    pub(crate) fn sweep(&self, now: Instant) {
        let silent = self.registry().silent(now, self.settings.session_timeout);
        for session in silent {
            self.end_session(&session);
        }
        self.futures.sweep(now);
    }
}
