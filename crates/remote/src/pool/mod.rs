//! One [`RolloutEngine`] over any number of inference servers.
//!
//! The pool has a thread of its own. Each request and each replica is a task there; what they share is [`state::State`].

mod adapters;
mod engine;
mod in_flight;
mod local;
mod replica;
mod request;
mod routing;
mod state;
mod times;
mod transfer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rloom_engine::{PolicyLabel, RolloutError, ServerSettings};
use rloom_text::Tokenizer;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use local::{Localized, Restart};

use adapters::Adapters;

use crate::server::{Server, Weights};
use replica::Supervisor;
use state::{Phase, State, Target};

/// Limits of the model that the servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Longest sequence in tokens, prompt and completion together.
    pub context: usize,
    /// Number of token ids.
    pub vocabulary: usize,
}

/// Durations of the pool's own work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolTimings {
    /// Time without an answer of a replica after which it has to generate one token.
    pub health: Duration,
    /// Timeout of that token.
    pub answer: Duration,
    /// Timeout of a control command.
    pub control: Duration,
    /// Timeout of the transfer of weights.
    pub load: Duration,
    /// Time that the requests of a leaving replica have to finish.
    pub drain: Duration,
    /// First pause between two attempts to bring up a replica; it doubles.
    pub backoff: Duration,
}

impl Default for PoolTimings {
    fn default() -> Self {
        Self {
            health: Duration::from_secs(10),
            answer: Duration::from_mins(2),
            control: Duration::from_mins(2),
            load: Duration::from_mins(15),
            drain: Duration::from_secs(30),
            backoff: Duration::from_secs(1),
        }
    }
}

/// What all tasks of the pool share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    limits: ModelLimits,
    tokenizer: Option<Tokenizer>,
    timings: PoolTimings,
    max_requests: usize,
    restarts: u32,
    replace_after: Duration,
    probe_tolerance: f32,
    /// Replicas give their device away between the batches.
    sleeps: bool,
    /// Rank of the adapters that replicas serve; `None` if they serve whole models.
    adapter_rank: Option<usize>,
    names: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the tasks that wait for a change.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_replace(());
        result
    }

    /// Changes requests. Wakes the tasks that wait for a change only if one of them may wait for this one: with hundreds of
    /// replicas, waking all of them for each request is most of the pool's work.
    fn change_requests<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, is_awaited) = {
            let mut state = self.lock();
            (change(&mut state), std::mem::take(&mut state.is_awaited))
        };
        if is_awaited {
            self.changed.send_replace(());
        }
        result
    }

    /// Waits until `find` finds something in the state.
    async fn until<T>(&self, mut find: impl FnMut(&State) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(found) = find(&self.lock()) {
                return found;
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    fn target(&self) -> (Option<Target>, u64) {
        let state = self.lock();
        (state.target.clone(), state.generation)
    }

    /// Weights of the pool's kind as a request names them.
    fn weights(&self, label: PolicyLabel) -> Weights {
        Weights { label, is_adapter: self.adapter_rank.is_some() }
    }

    fn next_name(&self) -> u64 {
        self.names.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the pool with an error for everything that is unanswered.
    fn end(&self, error: RolloutError) {
        self.change(|state| {
            state.end.get_or_insert(error);
            // Tasks notice that their request is gone, and read the error.
            let unanswered: Vec<u64> = state.requests.keys().copied().collect();
            for id in unanswered {
                state.remove_request(id);
            }
        });
    }

    /// Ends the pool if no replica is left that could come back.
    fn end_if_all_gone(&self) {
        let (all_gone, last) = {
            let state = self.lock();
            let all_gone = state.replicas.values().all(|replica| replica.phase == Phase::Gone);
            let has_failed = state.replicas.values().any(|replica| !replica.last_failure.is_empty());
            (all_gone && has_failed, state.failures())
        };
        if all_gone {
            self.end(RolloutError::NoReplica { after: Duration::ZERO, last });
        }
    }

    /// Ends the pool after too long a time without a replica.
    async fn watch_availability(&self) {
        loop {
            let since = self.until(|state| state.without_since).await;
            let deadline = since + self.replace_after;
            let served = self.until(|state| (state.without_since != Some(since)).then_some(()));
            if tokio::time::timeout_at(deadline, served).await.is_err() {
                let last = self.lock().failures();
                return self.end(RolloutError::NoReplica { after: self.replace_after, last });
            }
        }
    }
}

/// A [`RolloutEngine`](rloom_engine::RolloutEngine) over inference servers.
///
/// * **Requests** go where the fewest tokens are outstanding; those of a group or a session go to the replica that has
///   their prefix in its cache, up to a load of 25 % over the mean. A request whose replica is lost is sent elsewhere, with
///   the tokens that earlier attempts have returned as its prefix; only the current attempt's answer counts.
/// * **Answers are checked**: number and range of the tokens, finite log-probabilities, weights that were loaded, and the
///   reason for the end. A replica that breaks a rule is loaded again.
/// * **Updates are checked**: after a replica has acknowledged an update, its label is read back, and its log-probabilities
///   are compared with the [probe](rloom_engine::Probe) of the trainer, if there is one. Any failure takes the replica out of
///   service until its weights have been loaded again whole.
/// * **Replicas come and go** ([`join`](Self::join), [`leave`](Self::leave)). Each may fail as often as the settings allow;
///   a time without any ends the pool with an error.
///
/// The pool needs no runtime of the caller.
#[derive(Debug)]
pub struct ReplicaPool {
    shared: Arc<Shared>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    servers: usize,
    timeout: Duration,
}

impl ReplicaPool {
    /// A pool without replicas. Only requests with stop strings need the tokenizer.
    pub fn new(
        limits: ModelLimits,
        settings: &ServerSettings,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Self, RolloutError> {
        Self::with_timings(limits, settings, tokenizer, PoolTimings::default())
    }

    /// A pool of servers that have the base already: versions are adapters of up to this rank, which requests name, so that
    /// those in flight end under their own.
    pub fn of_adapters(
        limits: ModelLimits,
        settings: &ServerSettings,
        tokenizer: Option<Tokenizer>,
        rank: usize,
    ) -> Result<Self, RolloutError> {
        Self::of(limits, settings, tokenizer, PoolTimings::default(), Some(rank))
    }

    /// A pool with other durations of its own work.
    pub fn with_timings(
        limits: ModelLimits,
        settings: &ServerSettings,
        tokenizer: Option<Tokenizer>,
        timings: PoolTimings,
    ) -> Result<Self, RolloutError> {
        Self::of(limits, settings, tokenizer, timings, None)
    }

    /// A pool with other durations of its own work, of whole models or of adapters of up to a rank.
    pub fn of(
        limits: ModelLimits,
        settings: &ServerSettings,
        tokenizer: Option<Tokenizer>,
        timings: PoolTimings,
        adapter_rank: Option<usize>,
    ) -> Result<Self, RolloutError> {
        settings.validate()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(settings.max_requests)),
            changed: watch::Sender::new(()),
            limits,
            tokenizer,
            timings,
            max_requests: settings.max_requests,
            restarts: settings.restarts,
            replace_after: Duration::from_secs_f64(settings.replace_seconds),
            probe_tolerance: settings.probe_tolerance as f32,
            sleeps: settings.sleep,
            adapter_rank,
            names: AtomicU64::new(0),
        });
        let failed = |error: &std::io::Error| RolloutError::Thread {
            worker: "the pool of replicas".to_owned(),
            message: error.to_string(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("rollout-pool".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    _ = stopped => {}
                    () = async { watched.watch_availability().await; std::future::pending().await } => {}
                }
            });
            // Tasks end where they wait; a name that is being resolved may take its time.
            runtime.shutdown_background();
        });
        Ok(Self {
            shared,
            handle,
            stop: Some(stop),
            thread: Some(thread.map_err(|error| failed(&error))?),
            servers: settings.servers(),
            timeout: Duration::from_secs_f64(settings.timeout_seconds),
        })
    }

    /// Adds a replica: it is connected, gets the current weights, and then serves requests. Returns its number.
    pub fn join(&self, server: Server) -> u32 {
        self.add(server, None, 1)
    }

    /// Adds a replica whose process can be restarted. One with more devices gets more of the tokens.
    pub fn join_managed(&self, server: Server, restart: Arc<dyn Restart>, devices: usize) -> u32 {
        self.add(server, Some(restart), devices)
    }

    fn add(&self, server: Server, restart: Option<Arc<dyn Restart>>, devices: usize) -> u32 {
        let server = Arc::new(server);
        let id = self.shared.change(|state| state.add_replica(Arc::clone(&server), devices));
        let (shared, adapters) = (Arc::clone(&self.shared), Adapters::default());
        let supervisor = Supervisor { shared, id, server, restart, adapters };
        self.handle.spawn(supervisor.run());
        id
    }

    /// Last failure of each replica that has failed.
    pub fn failures(&self) -> Vec<(u32, String)> {
        let state = self.shared.lock();
        let failed = state.replicas.iter().filter(|(_, replica)| !replica.last_failure.is_empty());
        failed.map(|(&id, replica)| (id, replica.last_failure.clone())).collect()
    }

    /// Removes a replica: it gets no more requests, and those that it does not finish soon are sent elsewhere. Completes when
    /// it has none.
    pub fn leave(&self, replica: u32) -> impl Future<Output = ()> + Send + use<> {
        self.shared.change(|state| {
            if let Some(replica) = state.replicas.get_mut(&replica)
                && replica.phase != Phase::Gone
            {
                replica.set_phase(Phase::Leaving);
            }
            state.note_availability();
        });
        let shared = Arc::clone(&self.shared);
        async move {
            let is_gone = |state: &State| {
                let gone = state.replicas.get(&replica).is_none_or(|replica| replica.phase == Phase::Gone);
                (gone || state.end.is_some()).then_some(())
            };
            shared.until(is_gone).await;
        }
    }
}

impl Drop for ReplicaPool {
    fn drop(&mut self) {
        self.shared.end(RolloutError::ShutDown);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has no errors to report.
            drop(thread.join());
        }
    }
}

/// The time after a timeout.
fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout
}
