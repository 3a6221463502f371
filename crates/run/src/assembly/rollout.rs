//! The rollout engine of a stage, chosen when the run starts.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::OnUpdate;
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::{
    Abort, GenerateRequest, Generation, Health, PublishedPolicy, RolloutCapabilities, RolloutEngine,
    RolloutError, RolloutStatistics, WeightFolder, WorkerStatus,
};
use rloom_remote::ReplicaPool;

/// One of the rollout engines.
#[derive(Debug)]
pub(crate) enum ConfiguredRollout {
    /// The engine of this process.
    Embedded(Box<EmbeddedRolloutEngine>),
    /// Inference servers.
    Pool {
        pool: Arc<ReplicaPool>,
        /// The model that the servers of the run start with.
        _model: Option<Arc<WeightFolder>>,
    },
}

/// A future of one of the engines.
enum Either<E, P> {
    Embedded(E),
    Pool(P),
}

/// Calls a method of the chosen engine. It acts at once, as the trait demands; the returned future waits for its result.
macro_rules! delegate {
    ($engine:expr, $method:ident($($argument:expr),*)) => {{
        let called = match $engine {
            ConfiguredRollout::Embedded(engine) => Either::Embedded(engine.$method($($argument),*)),
            ConfiguredRollout::Pool { pool, .. } => Either::Pool(pool.$method($($argument),*)),
        };
        async move {
            match called {
                Either::Embedded(result) => result.await,
                Either::Pool(result) => result.await,
            }
        }
    }};
}

impl RolloutEngine for ConfiguredRollout {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        delegate!(self, generate(request))
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        delegate!(self, load(policy, on_update))
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        delegate!(self, release())
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        delegate!(self, abort(which))
    }

    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        delegate!(self, health(timeout))
    }

    fn capabilities(&self) -> RolloutCapabilities {
        match self {
            Self::Embedded(engine) => engine.capabilities(),
            Self::Pool { pool, .. } => pool.capabilities(),
        }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        match self {
            Self::Embedded(engine) => engine.workers(),
            Self::Pool { pool, .. } => pool.workers(),
        }
    }

    fn take_failures(&self) -> Vec<String> {
        match self {
            Self::Embedded(engine) => engine.take_failures(),
            Self::Pool { pool, .. } => pool.take_failures(),
        }
    }

    fn statistics(&self) -> RolloutStatistics {
        match self {
            Self::Embedded(engine) => engine.statistics(),
            Self::Pool { pool, .. } => pool.statistics(),
        }
    }
}
