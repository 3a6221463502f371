//! A rollout engine as a remote server would be: it takes weights only from Hugging Face folders, reports log-probabilities
//! with noise and one version per reply, holds two policies, and loses requests now and then.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rloom_core::{ErrorText, OnUpdate, PolicyId, RandomKey, StopReason, VersionSpan};
use rloom_engine::{
    Abort, Form, GenerateRequest, Generation, Health, InvalidReason, PolicyLabel, PublishedPolicy,
    PublishedWeights, RequestName, RolloutCapabilities, RolloutEngine, RolloutError, RolloutStatistics,
    VersionGranularity, WaitedFor, WorkerActivity, WorkerStatus,
};
use rloom_model::{Candidates, Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use tokio::sync::Notify;

/// Size of the noise on every log-probability; its sign alternates by position (nats).
pub(crate) const NOISE: f32 = 0.01;
/// One of this many requests is lost.
const LOST: u64 = 7;
const TIMEOUT: Duration = Duration::from_mins(10);

#[derive(Debug, Clone)]
struct Loaded {
    label: PolicyLabel,
    model: Arc<Model>,
}

#[derive(Debug, Default)]
struct State {
    loaded: Mutex<BTreeMap<PolicyId, Loaded>>,
    changed: Notify,
    requests: AtomicU64,
    lost: AtomicU64,
    sampled: AtomicU64,
    attachments: AtomicU64,
}

/// The engine; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct FolderSampler {
    state: Arc<State>,
    context: usize,
}

impl FolderSampler {
    pub(crate) fn new(context: usize) -> Self {
        Self { state: Arc::new(State::default()), context }
    }

    /// Requests that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// Requests that carried attachments.
    pub(crate) fn attachments(&self) -> u64 {
        self.state.attachments.load(Ordering::Relaxed)
    }

    /// Policies that are loaded.
    pub(crate) fn policies(&self) -> Vec<PolicyId> {
        self.loaded().keys().copied().collect()
    }

    fn loaded(&self) -> std::sync::MutexGuard<'_, BTreeMap<PolicyId, Loaded>> {
        self.state.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the weights of a policy.
    async fn weights(&self, policy: PolicyId) -> Loaded {
        loop {
            let changed = self.state.changed.notified();
            if let Some(loaded) = self.loaded().get(&policy).cloned() {
                return loaded;
            }
            changed.await;
        }
    }

    async fn complete(&self, request: GenerateRequest) -> Result<Generation, RolloutError> {
        let number = self.state.requests.fetch_add(1, Ordering::Relaxed);
        if number % LOST == LOST - 1 {
            self.state.lost.fetch_add(1, Ordering::Relaxed);
            return Err(RolloutError::ReplicaLost { replica: 0, message: "connection reset".to_owned() });
        }
        let max_new_tokens = request.sampling.max_new_tokens;
        if request.prompt.len() + max_new_tokens > self.context {
            let reason = InvalidReason::TooLong {
                prompt: request.prompt.len(),
                max_new_tokens,
                context: self.context,
            };
            return Err(RolloutError::InvalidRequest { request: RequestName(request.key), reason });
        }
        if !request.attachments.is_empty() {
            self.state.attachments.fetch_add(1, Ordering::Relaxed);
        }
        let loaded = self.weights(request.policy).await;
        let generation = tokio::task::spawn_blocking(move || complete(&loaded, &request))
            .await
            .map_err(|error| RolloutError::ReplicaLost { replica: 0, message: error.to_string() })?;
        self.state.sampled.fetch_add(generation.tokens.len() as u64, Ordering::Relaxed);
        Ok(generation)
    }
}

/// Samples a completion token by token, each from the log-probabilities of the whole vocabulary.
fn complete(loaded: &Loaded, request: &GenerateRequest) -> Generation {
    let sampling = &request.sampling;
    let mut sequence = [&request.prompt[..], &request.prefix[..]].concat();
    let temperature = sampling.reported_temperature();
    let limit = request.prompt.len() + sampling.max_new_tokens;
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    let mut stop = StopReason::Length;
    while sequence.len() < limit {
        let distribution = distribution(&loaded.model, &sequence, temperature);
        let token = if sampling.is_greedy() {
            greedy(&distribution)
        } else {
            draw(&distribution, uniform(request.key, sequence.len()))
        };
        logprobs.push((distribution[token] + noise(sequence.len())).min(0.0));
        sequence.push(token as u32);
        tokens.push(token as u32);
        if request.stop_tokens.contains(&(token as u32)) {
            stop = StopReason::StopToken;
            break;
        }
    }
    let PolicyLabel { policy, version, .. } = loaded.label;
    let versions = vec![VersionSpan { policy, version, range: 0..tokens.len() }];
    Generation { tokens, logprobs, temperature, versions, stop, replica: Some(0) }
}

/// Log-probabilities of the token after `sequence`: every id of the vocabulary as a candidate of one position.
fn distribution(model: &Model, sequence: &[u32], temperature: f32) -> Vec<f32> {
    let ids: Vec<u32> = (0..model.config().vocab_size as u32).collect();
    let tokens = [sequence, &[0]].concat();
    let packed = PackedTokens { tokens: &tokens, seq_starts: &[0, tokens.len()], parents: &[] };
    let rows = ScoreRows { rows: &[sequence.len() as u32], inv_temperature: &[1.0 / temperature] };
    let candidates = Candidates { k: ids.len(), ids: &ids };
    let scores = model.score_candidates(&Ctx::serial(), &packed, &rows, &candidates);
    scores.expect("a sequence within the context").logprob
}

/// Noise that is known: tests compute what the mismatch metrics must be.
pub(crate) fn noise(position: usize) -> f32 {
    if position.is_multiple_of(2) { NOISE } else { -NOISE }
}

fn greedy(distribution: &[f32]) -> usize {
    (0..distribution.len()).rev().max_by(|&a, &b| distribution[a].total_cmp(&distribution[b])).unwrap_or(0)
}

fn draw(distribution: &[f32], uniform: f64) -> usize {
    let mut left = uniform;
    for (token, logprob) in distribution.iter().enumerate() {
        left -= f64::from(logprob.exp());
        if left < 0.0 {
            return token;
        }
    }
    greedy(distribution)
}

/// A number in [0, 1) of its own generator: nothing of RLoom's streams.
fn uniform(key: RandomKey, position: usize) -> f64 {
    let words = [
        key.seed,
        u64::from(key.stage),
        key.purpose as u64,
        key.ticket,
        u64::from(key.sample),
        position as u64,
    ];
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for word in words {
        state = (state ^ word).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state ^= state >> 31;
        state = state.wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^= state >> 29;
    }
    (state >> 11) as f64 / (1u64 << 53) as f64
}

impl RolloutEngine for FolderSampler {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let (engine, name) = (self.clone(), RequestName(request.key));
        async move {
            match tokio::time::timeout(TIMEOUT, engine.complete(request)).await {
                Ok(result) => result,
                Err(_) => Err(RolloutError::Timeout {
                    waited_for: WaitedFor::Start { request: name, weights: None },
                    after: TIMEOUT,
                }),
            }
        }
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        _: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let label = policy.label();
        let result = match &policy.weights {
            PublishedWeights::Folder(folder) => Model::load(folder.path())
                .map(|model| Loaded { label, model: Arc::new(model) })
                .map_err(|error| RolloutError::Weights { label, cause: ErrorText::of(&error) }),
            _ => Err(RolloutError::UnsupportedForm {
                label,
                form: policy.form(),
                supported: vec![Form::Folder],
            }),
        };
        let result = result.map(|loaded| {
            self.loaded().insert(label.policy, loaded);
            self.state.changed.notify_waiters();
        });
        std::future::ready(result)
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        // It has its own copy of the weights: there is nothing to hand back.
        std::future::ready(Ok(()))
    }

    fn abort(&self, _: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        // Completions are short; a server that cannot abort finishes them.
        std::future::ready(Ok(()))
    }

    fn health(&self, _: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        let loaded = self.loaded().values().map(|loaded| loaded.label).collect();
        std::future::ready(Ok(Health { loaded, ..Health::default() }))
    }

    fn capabilities(&self) -> RolloutCapabilities {
        RolloutCapabilities {
            numeric_path: None,
            batch_invariant: true,
            on_update: vec![OnUpdate::Finish],
            mixes_versions: Vec::new(),
            versions: VersionGranularity::PerReply,
            forms: vec![Form::Folder],
            stop_strings: false,
            context: self.context,
            max_running: 4,
            policies: 2,
            attachments: true,
            parks: false,
            speculates: false,
            quantizes: false,
        }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        vec![WorkerStatus {
            worker: "replica 0".to_owned(),
            loaded: self.loaded().values().map(|loaded| loaded.label).collect(),
            running: 0,
            waiting: 0,
            queued: 0,
            activity: WorkerActivity::Idle,
            since: Duration::ZERO,
            busy: Duration::ZERO,
            sampled_tokens: self.state.sampled.load(Ordering::Relaxed),
            restarts: 0,
        }]
    }

    fn statistics(&self) -> RolloutStatistics {
        let sampled_tokens = self.state.sampled.load(Ordering::Relaxed);
        RolloutStatistics { computed_tokens: sampled_tokens, sampled_tokens, ..RolloutStatistics::default() }
    }
}
