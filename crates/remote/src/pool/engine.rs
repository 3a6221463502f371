//! The pool as a rollout engine.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::OnUpdate;
use rloom_engine::{
    Abort, Form, GenerateRequest, Generation, Health, InvalidReason, PublishedPolicy, RequestName,
    RequestTimes, RolloutCapabilities, RolloutEngine, RolloutError, RolloutStatistics, VersionGranularity,
    WaitedFor, WorkerStatus,
};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::request::Job;
use super::state::{Phase, State};
use super::{ReplicaPool, Shared, after};

/// Forms of weights that replicas of whole models load; `SGLang` servers ask for the folder of live ones.
const OF_MODELS: &[Form] = &[Form::Nccl, Form::Ipc, Form::Folder];
/// Forms that replicas of adapters load.
const OF_ADAPTERS: &[Form] = &[Form::Adapter];

/// Forgets a request when its future is dropped.
struct CancelGuard {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.shared.change_requests(|state| state.remove_request(self.id));
    }
}

/// Answer to a command in the pool's thread.
struct Answer<T>(oneshot::Receiver<Result<T, RolloutError>>);

impl<T> Answer<T> {
    async fn wait(self) -> Result<T, RolloutError> {
        self.0.await.unwrap_or(Err(RolloutError::ShutDown))
    }
}

impl ReplicaPool {
    /// Forms of weights that the replicas load.
    fn forms(&self) -> &'static [Form] {
        if self.shared.adapter_rank.is_some() { OF_ADAPTERS } else { OF_MODELS }
    }

    /// Reason to refuse a request.
    fn reason_to_refuse(&self, request: &GenerateRequest, state: &State) -> Option<InvalidReason> {
        let max_new_tokens = request.sampling.max_new_tokens;
        let (prompt, prefix) = (request.prompt.len(), request.prefix.len());
        if prompt == 0 {
            return Some(InvalidReason::EmptyPrompt);
        }
        if prefix > max_new_tokens {
            return Some(InvalidReason::PrefixTooLong { prefix, max_new_tokens });
        }
        let (vocabulary, context) = (self.shared.limits.vocabulary, self.shared.limits.context);
        let unknown = request.prompt.iter().chain(&request.prefix).find(|&&t| t as usize >= vocabulary);
        if let Some(&token) = unknown {
            return Some(InvalidReason::UnknownToken { token, vocabulary });
        }
        if let Some(attachment) = request.attachments.first() {
            return Some(InvalidReason::Attachment { media_type: attachment.media_type.clone() });
        }
        if !request.sampling.stop.is_empty() && self.shared.tokenizer.is_none() {
            return Some(InvalidReason::NoTokenizer);
        }
        if prompt + max_new_tokens > context {
            return Some(InvalidReason::TooLong { prompt, max_new_tokens, context });
        }
        let loaded = state.target.as_ref().map(|target| target.published.policy)?;
        (loaded != request.policy)
            .then(|| InvalidReason::UnknownPolicy { policy: request.policy, loaded: vec![loaded] })
    }

    /// Checks a request and starts its task.
    fn submit(
        &self,
        request: GenerateRequest,
        timeout: Duration,
    ) -> Result<(CancelGuard, oneshot::Receiver<Result<Generation, RolloutError>>), RolloutError> {
        request.sampling.validate()?;
        let (id, signals) = {
            let mut state = self.shared.lock();
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            if let Some(reason) = self.reason_to_refuse(&request, &state) {
                return Err(RolloutError::InvalidRequest { request: RequestName(request.key), reason });
            }
            state.add_request(&request)
        };
        let shared = Arc::clone(&self.shared);
        let guard = CancelGuard { shared: Arc::clone(&shared), id };
        let deadline = after(timeout);
        let job = Job { shared: Arc::clone(&shared), id, request, signals, lost: 0, deadline, timeout };
        let (reply, answer) = oneshot::channel();
        self.handle.spawn(async move {
            if let Some(result) = job.run().await {
                // The caller may have dropped it.
                drop(reply.send(result));
                shared.change_requests(|state| state.remove_request(id));
            }
        });
        Ok((guard, answer))
    }

    /// Runs a command in the pool's thread.
    fn spawn<T: Send + 'static>(
        &self,
        command: impl Future<Output = Result<T, RolloutError>> + Send + 'static,
    ) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        self.handle.spawn(async move { drop(reply.send(command.await)) });
        Answer(answer)
    }

    /// Waits until all replicas that serve have followed a load or release.
    fn follow(&self, generation: u64, command: &'static str) -> Answer<()> {
        let (shared, timeout) = (Arc::clone(&self.shared), self.timeout);
        self.spawn(async move {
            let followed = shared.until(|state| {
                if let Some(end) = &state.end {
                    return Some(Err(end.clone()));
                }
                let mut live = state.replicas.values().filter(|replica| replica.phase.is_live()).peekable();
                let is_served = live.peek().is_some() || state.target.is_none();
                (is_served && live.all(|replica| replica.generation >= generation)).then_some(Ok(()))
            });
            match timeout_at(after(timeout), followed).await {
                Ok(result) => result,
                Err(_) => Err(shared.late(command, timeout, generation)),
            }
        })
    }
}

impl Shared {
    /// Error of a command that replicas have not followed in time.
    fn late(&self, command: &'static str, after: Duration, generation: u64) -> RolloutError {
        let state = self.lock();
        let late = state.replicas.iter().find(|(_, replica)| replica.generation < generation);
        match late.and_then(|(&id, _)| state.status(id)) {
            Some(worker) => {
                let waited_for = WaitedFor::Worker { worker: Box::new(worker), command };
                RolloutError::Timeout { waited_for, after }
            }
            None => RolloutError::NoReplica { after, last: state.failures() },
        }
    }
}

impl RolloutEngine for ReplicaPool {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let timeout = request.timeout.unwrap_or(self.timeout);
        let submitted = self.submit(request, timeout);
        let shared = Arc::clone(&self.shared);
        async move {
            let (_guard, answer) = submitted?;
            let ended = || shared.lock().end.clone().unwrap_or(RolloutError::ShutDown);
            answer.await.unwrap_or_else(|_| Err(ended()))
        }
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let (label, forms) = (policy.label(), self.forms());
        let accepted = self.shared.change(|state| {
            let form = policy.form();
            if !forms.contains(&form) {
                return Err(RolloutError::UnsupportedForm { label, form, supported: forms.to_vec() });
            }
            let loaded = state.target.as_ref().map(|target| target.published.policy);
            if let Some(loaded) = loaded.filter(|&loaded| loaded != label.policy) {
                return Err(RolloutError::TooManyPolicies { label, loaded: vec![loaded], limit: 1 });
            }
            Ok(state.set_target(Some(policy.clone()), on_update))
        });
        let followed = accepted.map(|generation| self.follow(generation, "load weights"));
        async move { followed?.wait().await }
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let generation = self.shared.change(|state| state.set_target(None, OnUpdate::Finish));
        self.follow(generation, "release its weights").wait()
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let selected: Vec<u64> = self.shared.change(|state| {
            let selected = state.requests.iter().filter(|(_, entry)| which.selects(entry.group, entry.key));
            let selected = selected.map(|(&id, entry)| {
                entry.signal.send_modify(|signals| signals.is_aborted = true);
                id
            });
            selected.collect()
        });
        let shared = Arc::clone(&self.shared);
        // Each request answers within the timeout of a command.
        self.spawn(async move {
            let is_answered =
                |state: &State| selected.iter().all(|id| !state.requests.contains_key(id)).then_some(());
            shared.until(is_answered).await;
            Ok(())
        })
        .wait()
    }

    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        let shared = Arc::clone(&self.shared);
        self.spawn(async move {
            let live: Vec<_> = {
                let state = shared.lock();
                if let Some(end) = &state.end {
                    return Err(end.clone());
                }
                let live = state.replicas.iter().filter(|(_, replica)| replica.phase.is_live());
                live.map(|(&id, replica)| (id, replica.incarnation, Arc::clone(&replica.server))).collect()
            };
            let deadline = after(timeout);
            for (id, incarnation, server) in live {
                if server.ping(deadline).await.is_err() {
                    let state = shared.lock();
                    let is_same =
                        state.replicas.get(&id).is_some_and(|replica| replica.incarnation == incarnation);
                    if let Some(worker) =
                        state.status(id).filter(|_| is_same && deadline <= after(Duration::ZERO))
                    {
                        let waited_for =
                            WaitedFor::Worker { worker: Box::new(worker), command: "report its load" };
                        return Err(RolloutError::Timeout { waited_for, after: timeout });
                    }
                }
            }
            Ok(load_of(&shared.lock()))
        })
        .wait()
    }

    fn capabilities(&self) -> RolloutCapabilities {
        RolloutCapabilities {
            numeric_path: None,
            batch_invariant: false,
            on_update: vec![OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Keep, OnUpdate::Abort],
            // Requests keep their adapter.
            mixes_versions: if self.shared.adapter_rank.is_some() {
                Vec::new()
            } else {
                vec![OnUpdate::Keep]
            },
            versions: VersionGranularity::PerToken,
            forms: self.forms().to_vec(),
            stop_strings: self.shared.tokenizer.is_some(),
            context: self.shared.limits.context,
            max_running: self.servers.saturating_mul(self.shared.max_requests),
            policies: 1,
            attachments: false,
            parks: self.shared.sleeps,
            speculates: false,
            quantizes: false,
        }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        let state = self.shared.lock();
        state.replicas.keys().filter_map(|&id| state.status(id)).collect()
    }

    fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().reports)
    }

    fn take_request_times(&self) -> Option<RequestTimes> {
        let mut state = self.shared.lock();
        let replicas = state.replicas.values().filter(|replica| replica.phase.is_live()).count();
        let (answered, requests, updates) = state.times.take();
        let max_requests = state.max_requests;
        Some(RequestTimes { replicas, max_requests, answered, requests, updates })
    }

    fn statistics(&self) -> RolloutStatistics {
        let state = self.shared.lock();
        let sampled_tokens = state.replicas.values().map(|replica| replica.sampled_tokens).sum();
        RolloutStatistics { sampled_tokens, ..RolloutStatistics::default() }
    }
}

/// Load of all replicas together. They load weights on their own; the pool's are the oldest still in use.
fn load_of(state: &State) -> Health {
    let live = || state.replicas.values().filter(|replica| replica.phase.is_live());
    let labels = live().map(|replica| replica.label);
    let oldest = labels.min_by_key(|label| label.map(|label| label.version)).flatten();
    let leaving = state.replicas.values().filter(|replica| replica.phase == Phase::Leaving);
    let running = live().chain(leaving).map(|replica| replica.running.len()).sum();
    Health {
        loaded: oldest.into_iter().collect(),
        running,
        waiting: state.requests.len() - running,
        used_blocks: 0,
        blocks: 0,
    }
}
