//! The rollout engine of this process.

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rloom_core::{ErrorText, OnUpdate, StopReason};
use rloom_engine::{
    Abort, GenerateRequest, Generation, Health, InvalidReason, PublishedPolicy, RequestName,
    RolloutCapabilities, RolloutEngine, RolloutError, RolloutQuantization, RolloutSettings,
    RolloutStatistics, Speculation, VersionGranularity, WaitedFor, WorkerStatus,
    sizing::{self, LaneLimits},
};
use rloom_model::ModelConfig;
use rloom_ops::{Ctx, KV_BLOCK, shared_cache_bytes};
use rloom_text::Tokenizer;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::batch::{Batch, Limits, blocks_for};
use super::decoder::{Decoder, ModelDecoder};
use super::dispatch::{Command, Shared};
use super::lane::{Lane, other_policy};
use super::sequence::{Progress, Sequence};
use super::status::lane_name;
use super::stop::StopWatch;
use super::weights::{FORMS, LoadedWeights};

/// Timeout for the lanes when an engine is dropped, unless the timeout of its requests is shorter.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of policies that the engine holds.
const POLICIES: usize = 1;

/// The [`RolloutEngine`] on this machine's processors: lane threads that decode with [`rloom_model::Model::step`].
///
/// * **Bitwise reproducible.** A completion depends on its request and the weights alone: not on lanes, threads, batches,
///   chunk sizes, memory, prefix sharing or preemption. Its log-probabilities are bitwise
///   identical to those of [`rloom_model::Model::score`] for the same tokens; with [`RolloutSettings::quantize`], to those of
///   [`rloom_model::Model::quantized`].
/// * **No copies**, unless weights are quantized. Lanes share the weights from [`load`](RolloutEngine::load) until
///   [`release`](RolloutEngine::release) has completed; in between the trainer must not write to them in place.
/// * **Futures** are completed by the lanes' threads and may be polled by any executor; timeouts need a Tokio runtime
///   with its time driver (`enable_time`) around the polling. They hold even if a lane hangs: no lane computes while it
///   holds the lock that callers need. [`workers`](RolloutEngine::workers) shows what each lane was last doing.
/// * **Failures.** A lane that panics, or whose model fails, restarts with a new cache up to
///   [`RolloutSettings::restarts`] times. Its requests return [`RolloutError::WorkerRestarted`], and everything else
///   continues. The next failure ends the engine with its message.
/// * **One policy** at a time. Requests for another one than the loaded policy are refused. After a release another
///   policy may be loaded.
///
/// Requests may be submitted before the first load; they wait for it. Dropping the engine joins its threads, which takes
/// at most one step. A lane that is still in its step after ten seconds (or the engine's timeout, if that is shorter) is
/// detached, since a thread cannot be stopped from outside. It owns its cache and a handle on the weights until the step
/// returns, then drops both and ends.
#[derive(Debug)]
pub struct EmbeddedRolloutEngine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    config: ModelConfig,
    numeric_path: String,
    keeps_cache: bool,
    lane_blocks: usize,
    max_batch: usize,
    timeout: Duration,
    speculation: Speculation,
    /// Context in which loaded weights are quantized, if they are.
    quantizer: Option<Ctx>,
    tokenizer: Option<Tokenizer>,
}

impl EmbeddedRolloutEngine {
    /// An engine for models with this configuration, on the instruction set of `ctx`, and on its threads unless the
    /// settings specify a number. Only requests with stop strings need the tokenizer.
    pub fn new(
        config: &ModelConfig,
        ctx: &Ctx,
        settings: &RolloutSettings,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Self, RolloutError> {
        let keeps_cache = !sizing::is_large(parameter_bytes(config));
        settings.validate()?;
        let threads = if settings.threads == 0 { ctx.threads() } else { settings.threads };
        let lanes = lanes(config, threads, settings);
        let blocks = cache_shape(config).lane_blocks(lanes, settings)?;
        let mut decoders = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let ctx = if lanes == 1 && settings.threads == 0 {
                ctx.clone()
            } else {
                ctx.with_threads((threads / lanes).max(1)).map_err(|error| thread_error(lane, &error))?
            };
            decoders.push(ModelDecoder::new(ctx, config.clone(), blocks, keeps_cache));
        }
        let mut engine = Self::with_decoders(config, settings, tokenizer, blocks, decoders)?;
        config.dtype.numeric_path(ctx).clone_into(&mut engine.numeric_path);
        engine.keeps_cache = keeps_cache;
        engine.quantizer = settings.quantize.map(|RolloutQuantization::Int8| ctx.clone());
        Ok(engine)
    }

    /// An engine with one lane per decoder, each with `lane_blocks` blocks.
    pub(crate) fn with_decoders<D: Decoder + 'static>(
        config: &ModelConfig,
        settings: &RolloutSettings,
        tokenizer: Option<Tokenizer>,
        lane_blocks: usize,
        decoders: Vec<D>,
    ) -> Result<Self, RolloutError> {
        let shared = Arc::new(Shared::new(decoders.len(), lane_blocks * KV_BLOCK));
        let mut engine = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            config: config.clone(),
            numeric_path: String::new(),
            keeps_cache: true,
            lane_blocks,
            max_batch: settings.max_batch,
            timeout: Duration::from_secs_f64(settings.timeout_seconds),
            speculation: settings.speculation,
            quantizer: None,
            tokenizer,
        };
        let limits = Limits {
            max_batch: settings.max_batch,
            prefill_chunk: settings.prefill_chunk,
            blocks: lane_blocks,
            speculation: settings.speculation,
        };
        for (index, decoder) in decoders.into_iter().enumerate() {
            let batch = Batch::new(index, limits, decoder.ctx().threads());
            let lane = Lane::new(index, Arc::clone(&shared), decoder, batch, settings.restarts);
            let thread = std::thread::Builder::new()
                .name(format!("rollout-lane-{index}"))
                .spawn(move || lane.run())
                .map_err(|error| thread_error(index, &error))?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Validates a request and queues it.
    fn submit(&self, request: GenerateRequest) -> Result<Submitted, RolloutError> {
        self.validate(&request)?;
        let watch = match &self.tokenizer {
            Some(tokenizer) if !request.sampling.stop.is_empty() => {
                StopWatch::new(tokenizer, &request.sampling.stop).map_err(|error| {
                    invalid(&request, InvalidReason::StopStrings { cause: ErrorText::of(&error) })
                })?
            }
            _ => None,
        };
        let (reply, answer) = oneshot::channel();
        let mut sequence = Sequence::new(request, watch, reply);
        let progress = Arc::clone(&sequence.progress);
        if let Some(stop) = sequence.check_prefix()? {
            sequence.finish(stop);
            return Ok(Submitted { progress, answer });
        }
        let mut dispatcher = self.shared.dispatcher();
        if let Some(end) = &dispatcher.end {
            return Err(end.clone());
        }
        if let Some(loaded) = dispatcher.loaded
            && loaded.policy != sequence.policy
        {
            return Err(other_policy(&sequence, loaded));
        }
        dispatcher.submit(sequence);
        drop(dispatcher);
        self.shared.wake_lanes();
        Ok(Submitted { progress, answer })
    }

    /// Checks a request against the engine's limits.
    fn validate(&self, request: &GenerateRequest) -> Result<(), RolloutError> {
        request.sampling.validate()?;
        match self.reason_to_refuse(request) {
            None => Ok(()),
            Some(reason) => Err(invalid(request, reason)),
        }
    }

    fn reason_to_refuse(&self, request: &GenerateRequest) -> Option<InvalidReason> {
        let max_new_tokens = request.sampling.max_new_tokens;
        let (prompt, prefix) = (request.prompt.len(), request.prefix.len());
        if prompt == 0 {
            return Some(InvalidReason::EmptyPrompt);
        }
        if prefix > max_new_tokens {
            return Some(InvalidReason::PrefixTooLong { prefix, max_new_tokens });
        }
        let vocabulary = self.config.vocab_size;
        let unknown = request.prompt.iter().chain(&request.prefix).find(|&&t| t as usize >= vocabulary);
        if let Some(&token) = unknown {
            return Some(InvalidReason::UnknownToken { token, vocabulary });
        }
        if let Some(attachment) = request.attachments.first() {
            return Some(InvalidReason::Attachment { media_type: attachment.media_type.clone() });
        }
        if !request.sampling.stop.is_empty() && self.tokenizer.is_none() {
            return Some(InvalidReason::NoTokenizer);
        }
        let tokens = prompt + max_new_tokens;
        let context = self.config.max_positions;
        if tokens > context {
            return Some(InvalidReason::TooLong { prompt, max_new_tokens, context });
        }
        // The last token is sampled and never computed.
        let needed = blocks_for(tokens - 1);
        let (block, blocks) = (KV_BLOCK, self.lane_blocks);
        (needed > blocks).then_some(InvalidReason::ExceedsCache { tokens, needed, block, blocks })
    }

    /// Sends a command to every lane and returns the receivers of the answers.
    fn command<T>(
        &self,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> Result<Vec<oneshot::Receiver<T>>, RolloutError> {
        let mut dispatcher = self.shared.dispatcher();
        if let Some(end) = &dispatcher.end {
            return Err(end.clone());
        }
        let mut answers = Vec::with_capacity(dispatcher.lanes.len());
        for lane in &mut dispatcher.lanes {
            let (reply, answer) = oneshot::channel();
            lane.commands.push_back(command(reply));
            answers.push(answer);
        }
        drop(dispatcher);
        self.shared.wake_lanes();
        Ok(answers)
    }

    fn wait(&self, after: Duration, command: &'static str) -> Wait {
        Wait { shared: Arc::clone(&self.shared), until: Instant::now() + after, after, command }
    }

    /// Sends new weights to the lanes and fails the queued requests for other policies.
    fn send_load(
        &self,
        published: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> Result<Vec<oneshot::Receiver<()>>, RolloutError> {
        let weights = LoadedWeights::of(published, &self.config, self.quantizer.as_ref())?;
        let label = weights.label;
        let mut dispatcher = self.shared.dispatcher();
        if let Some(loaded) = dispatcher.loaded
            && loaded.policy != label.policy
        {
            return Err(RolloutError::TooManyPolicies {
                label,
                loaded: vec![loaded.policy],
                limit: POLICIES,
            });
        }
        dispatcher.loaded = Some(label);
        let refused = dispatcher.withdraw(|s| s.policy != label.policy);
        drop(dispatcher);
        for sequence in refused {
            let error = other_policy(&sequence, label);
            sequence.fail(error);
        }
        self.command(|done| Command::Load(Some(weights.clone()), on_update, done))
    }

    /// Requests all lanes to release their weights.
    fn send_release(&self) -> Result<Vec<oneshot::Receiver<()>>, RolloutError> {
        self.shared.dispatcher().loaded = None;
        self.command(|done| Command::Load(None, OnUpdate::Finish, done))
    }
}

fn parameter_bytes(config: &ModelConfig) -> u64 {
    config.parameter_count() * size_of::<f32>() as u64
}

/// Number of lanes of an engine with `threads` threads, on this machine.
pub fn lanes(config: &ModelConfig, threads: usize, settings: &RolloutSettings) -> usize {
    let weights = match settings.quantize {
        Some(RolloutQuantization::Int8) => config.parameter_count(),
        None => config.packed_bytes(),
    };
    let cache = shared_cache_bytes() as u64;
    sizing::lanes(LaneLimits { parameters: parameter_bytes(config), weights, cache }, threads, settings)
}

/// Layout of the key-value cache for models with this configuration.
pub fn cache_shape(config: &ModelConfig) -> sizing::CacheShape {
    sizing::CacheShape {
        token_bytes: config.kv_bytes_per_token(),
        block_tokens: KV_BLOCK,
        context: config.max_positions,
    }
}

/// Waits for lanes to answer a command.
struct Wait {
    shared: Arc<Shared>,
    until: Instant,
    after: Duration,
    command: &'static str,
}

impl Wait {
    async fn for_all<T>(self, answers: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, RolloutError> {
        let mut results = Vec::with_capacity(answers.len());
        for (lane, answer) in answers.into_iter().enumerate() {
            match timeout_at(self.until, answer).await {
                Ok(Ok(result)) => results.push(result),
                Ok(Err(_)) => return Err(self.shared.dispatcher().reason_for_drop(lane)),
                Err(_) => {
                    let worker = Box::new(self.shared.dispatcher().status(lane));
                    let waited_for = WaitedFor::Worker { worker, command: self.command };
                    return Err(RolloutError::Timeout { waited_for, after: self.after });
                }
            }
        }
        Ok(results)
    }
}

/// A submitted request.
struct Submitted {
    progress: Arc<Progress>,
    answer: oneshot::Receiver<Result<Generation, RolloutError>>,
}

fn invalid(request: &GenerateRequest, reason: InvalidReason) -> RolloutError {
    RolloutError::InvalidRequest { request: RequestName(request.key), reason }
}

fn thread_error(lane: usize, error: &dyn std::error::Error) -> RolloutError {
    RolloutError::Thread { worker: lane_name(lane), message: error.to_string() }
}

/// Adds up the reports of all lanes. Lanes load weights one after the other; the engine's are the oldest still in use.
fn combined(reports: Vec<Health>) -> Health {
    let labels = reports.iter().map(|report| report.loaded.first().copied());
    let oldest = labels.min_by_key(|label| label.map(|label| label.version)).flatten();
    let mut health = Health { loaded: oldest.into_iter().collect(), ..Health::default() };
    for report in reports {
        health.running += report.running;
        health.waiting += report.waiting;
        health.used_blocks += report.used_blocks;
        health.blocks += report.blocks;
    }
    health
}

impl RolloutEngine for EmbeddedRolloutEngine {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let after = request.timeout.unwrap_or(self.timeout);
        let until = Instant::now() + after;
        let name = RequestName(request.key);
        let limit = request.sampling.max_new_tokens;
        let submitted = self.submit(request);
        let shared = Arc::clone(&self.shared);
        async move {
            let Submitted { progress, answer } = submitted?;
            match timeout_at(until, answer).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => {
                    let lane = progress.read().map_or(0, |(lane, _)| lane);
                    Err(shared.dispatcher().reason_for_drop(lane))
                }
                Err(_) => {
                    let dispatcher = shared.dispatcher();
                    let waited_for = match progress.read() {
                        Some((lane, tokens)) => WaitedFor::Completion {
                            request: name,
                            tokens,
                            limit,
                            worker: Box::new(dispatcher.status(lane)),
                        },
                        None => WaitedFor::Start { request: name, weights: dispatcher.loaded },
                    };
                    Err(RolloutError::Timeout { waited_for, after })
                }
            }
        }
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let wait = self.wait(self.timeout, "load weights");
        let sent = self.send_load(policy, on_update);
        async move { wait.for_all(sent?).await.map(drop) }
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let wait = self.wait(self.timeout, "release its weights");
        let sent = self.send_release();
        async move { wait.for_all(sent?).await.map(drop) }
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let withdrawn = self.shared.dispatcher().withdraw(|s| which.selects(s.group, s.key));
        for sequence in withdrawn {
            sequence.finish(StopReason::Aborted);
        }
        let wait = self.wait(self.timeout, "abort requests");
        let sent = self.command(|done| Command::Abort(which, done));
        async move { wait.for_all(sent?).await.map(drop) }
    }

    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        // Cancelled requests do not count as waiting.
        drop(self.shared.dispatcher().withdraw(Sequence::is_cancelled));
        let wait = self.wait(timeout, "report its load");
        let sent = self.command(Command::Report);
        async move { wait.for_all(sent?).await.map(combined) }
    }

    fn capabilities(&self) -> RolloutCapabilities {
        RolloutCapabilities {
            numeric_path: Some(self.numeric_path.clone()),
            batch_invariant: true,
            on_update: vec![OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Keep, OnUpdate::Abort],
            mixes_versions: vec![OnUpdate::Keep],
            versions: VersionGranularity::PerToken,
            forms: FORMS.to_vec(),
            stop_strings: self.tokenizer.is_some(),
            context: self.config.max_positions,
            max_running: self.threads.len().saturating_mul(self.max_batch),
            policies: POLICIES,
            attachments: false,
            parks: !self.keeps_cache,
            speculates: self.speculation != Speculation::Off,
            quantizes: self.quantizer.is_some(),
        }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        let dispatcher = self.shared.dispatcher();
        (0..dispatcher.lanes.len()).map(|lane| dispatcher.status(lane)).collect()
    }

    fn statistics(&self) -> RolloutStatistics {
        let dispatcher = self.shared.dispatcher();
        let totals = dispatcher.lanes.iter().map(|lane| lane.status.statistics);
        totals.fold(RolloutStatistics::default(), |sum, own| sum + own)
    }
}

impl Drop for EmbeddedRolloutEngine {
    fn drop(&mut self) {
        self.shared.end(RolloutError::ShutDown);
        let ended = self.shared.wait_for_end(self.timeout.min(SHUTDOWN_TIMEOUT));
        for (thread, ended) in self.threads.drain(..).zip(ended) {
            if ended {
                // Lanes catch their own panics; another one has no caller to report to.
                drop(thread.join());
            }
        }
    }
}
