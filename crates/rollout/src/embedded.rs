//! The engine inside this process.

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rloom_core::{PolicyVersion, StopReason};
use rloom_model::{ModelConfig, Weights};
use rloom_ops::{Ctx, KV_BLOCK};
use rloom_text::Tokenizer;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::batch::{Batch, Limits, Statistics, blocks_for};
use crate::decoder::{Decoder, ModelDecoder};
use crate::dispatch::{Command, Shared};
use crate::error::RequestName;
use crate::lane::Lane;
use crate::sequence::{Progress, Sequence};
use crate::stop::StopWatch;
use crate::{
    Abort, Capabilities, GenerateRequest, Generation, Health, InFlight, LaneReport, RolloutEngine,
    RolloutError, RolloutSettings, Speculation,
};

/// Weights of more bytes than this (in f32) do not stay in the processor's caches, so that a step is bound by reading
/// them: all threads then share the reading, in one lane. Smaller models run one lane per thread, each with its share of
/// the sequences and nothing to wait for inside a step, which measured faster.
const LARGE_MODEL_BYTES: u64 = 256 << 20;

/// How long dropping an engine waits for its lanes at most; the deadline of its requests where that is shorter.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);

/// The most that the cache takes where the settings leave it to the engine.
const AUTOMATIC_KV_BYTES: u64 = 2 << 30;

/// The [`RolloutEngine`] on this machine's processors: lane threads that decode with [`rloom_model::Model::step`].
///
/// * **Bit for bit.** A completion depends on its request and the weights alone: not on lanes, threads, batch, chunk
///   size, memory, prefix sharing or being put back. Its log-probabilities are the bits that scoring the same tokens
///   with [`rloom_model::Model::score`] gives.
/// * **Nothing is copied.** Lanes hold the weights through an [`Arc`] from [`load`](RolloutEngine::load) until
///   [`release`](RolloutEngine::release) has completed; between the two the trainer must not write to them in place.
/// * **Waiting.** Futures are completed by the lanes' threads and may be polled by any executor; deadlines need a Tokio
///   runtime with its time driver (`enable_time`) around the polling. They hold also when a lane hangs: no lane computes
///   with the lock held that callers need. [`lanes`](Self::lanes) then says what each one was doing when it was last
///   heard of.
/// * **Failing.** A lane that panics, or whose model fails, is started again with a new cache as often as
///   [`RolloutSettings::restarts`] allows; the requests that it had answer with
///   [`RolloutError::LaneRestarted`], and everything else goes on. One failure more ends the engine, with its message.
///
/// Requests may be made before the first load; they wait for it. Dropping the engine joins its threads, which takes no
/// longer than one step. A lane that is still in its step after ten seconds (or the engine's deadline, where that is
/// shorter) is left behind: a thread cannot be stopped from outside. It owns its cache and holds the weights until the
/// step returns, then lets go of both and ends, without touching anything else.
#[derive(Debug)]
pub struct EmbeddedEngine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    config: ModelConfig,
    lane_blocks: usize,
    deadline: Duration,
    speculation: Speculation,
    tokenizer: Option<Tokenizer>,
}

impl EmbeddedEngine {
    /// An engine for models of this shape, on the instruction set of `ctx`, and on its threads unless the settings name a
    /// number. Only requests with stop strings need the tokenizer.
    pub fn new(
        config: &ModelConfig,
        ctx: &Ctx,
        settings: &RolloutSettings,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Self, RolloutError> {
        let large = config.parameter_count() * size_of::<f32>() as u64 > LARGE_MODEL_BYTES;
        settings.validate()?;
        let threads = if settings.threads == 0 { ctx.threads() } else { settings.threads };
        let lanes = match settings.lanes {
            0 if large => 1,
            0 => threads,
            lanes => lanes,
        };
        let blocks = lane_blocks(config, settings, lanes)?;
        let mut decoders = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let ctx = if lanes == 1 && settings.threads == 0 {
                ctx.clone()
            } else {
                Ctx::with_isa((threads / lanes).max(1), ctx.isa())
                    .map_err(|error| RolloutError::Thread { lane, cause: error.to_string() })?
            };
            decoders.push(ModelDecoder::new(ctx, config.clone(), blocks, !large));
        }
        Self::with_decoders(config, settings, tokenizer, blocks, decoders)
    }

    /// An engine with one lane per decoder, each with `lane_blocks` blocks.
    pub(crate) fn with_decoders<D: Decoder + 'static>(
        config: &ModelConfig,
        settings: &RolloutSettings,
        tokenizer: Option<Tokenizer>,
        lane_blocks: usize,
        decoders: Vec<D>,
    ) -> Result<Self, RolloutError> {
        let shared = Arc::new(Shared::new(decoders.len()));
        let mut engine = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            config: config.clone(),
            lane_blocks,
            deadline: Duration::from_secs_f64(settings.deadline_seconds),
            speculation: settings.speculation,
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
                .map_err(|error| RolloutError::Thread { lane: index, cause: error.to_string() })?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// What each lane last said of itself: for stall reports, and for the share of its time that it was busy. Asks no
    /// lane, so that one that hangs is reported as well.
    pub fn lanes(&self) -> Vec<LaneReport> {
        let board = self.shared.board();
        (0..board.desks.len()).map(|lane| board.report(lane)).collect()
    }

    /// What the lanes have done since the engine was made, as of each lane's last step.
    pub fn statistics(&self) -> Statistics {
        let board = self.shared.board();
        board.desks.iter().fold(Statistics::default(), |sum, desk| sum + desk.notes.statistics)
    }

    /// Whether and how its lanes draft tokens.
    pub fn speculation(&self) -> Speculation {
        self.speculation
    }

    /// Has a lane's thread panic before its next step, with whatever it has in its batch: for tests of what becomes of a
    /// run then.
    #[doc(hidden)]
    pub fn fail_lane(&self, lane: usize) {
        if let Some(desk) = self.shared.board().desks.get_mut(lane) {
            desk.commands.push_back(Command::Fail);
        }
        self.shared.ring();
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Checks a request and queues it.
    fn submit(&self, request: GenerateRequest) -> Result<Submitted, RolloutError> {
        self.check(&request)?;
        let watch = match &self.tokenizer {
            Some(tokenizer) if !request.sampling.stop.is_empty() => {
                StopWatch::new(tokenizer, &request.sampling.stop)
                    .map_err(|error| invalid(&request, error.to_string()))?
            }
            _ => None,
        };
        let (reply, answer) = oneshot::channel();
        let mut sequence = Sequence::new(request, watch, reply);
        let progress = Arc::clone(&sequence.progress);
        if let Some(stop) = sequence.review_prefix()? {
            sequence.finish(stop);
            return Ok(Submitted { progress, answer });
        }
        let mut board = self.shared.board();
        if let Some(end) = &board.end {
            return Err(end.clone());
        }
        board.submit(sequence);
        drop(board);
        self.shared.ring();
        Ok(Submitted { progress, answer })
    }

    /// Whether the request can be answered at all.
    fn check(&self, request: &GenerateRequest) -> Result<(), RolloutError> {
        request.sampling.validate()?;
        let name = RequestName(request.key);
        let max_new_tokens = request.sampling.max_new_tokens;
        if request.prompt.is_empty() {
            return Err(invalid(
                request,
                "the prompt is empty: a first token has no prefix to be predicted from",
            ));
        }
        if request.prefix.len() > max_new_tokens {
            let prefix = request.prefix.len();
            return Err(invalid(request, format!("a prefix of {prefix} tokens exceeds max_new_tokens")));
        }
        let vocabulary = self.config.vocab_size;
        let foreign = request.prompt.iter().chain(&request.prefix).find(|&&t| t as usize >= vocabulary);
        if let Some(token) = foreign {
            let reason = format!("token {token} is outside of the model's vocabulary of {vocabulary}");
            return Err(invalid(request, reason));
        }
        if !request.sampling.stop.is_empty() && self.tokenizer.is_none() {
            return Err(invalid(request, "stop strings need a tokenizer, and this engine has none"));
        }
        let prompt = request.prompt.len();
        let tokens = prompt + max_new_tokens;
        let context = self.config.max_positions;
        if tokens > context {
            return Err(RolloutError::TooLong { request: name, prompt, max_new_tokens, context });
        }
        // The last token is chosen and never computed.
        let needed = blocks_for(tokens - 1);
        if needed > self.lane_blocks {
            let (block, blocks) = (KV_BLOCK, self.lane_blocks);
            return Err(RolloutError::NeverFits { request: name, tokens, needed, block, blocks });
        }
        Ok(())
    }

    /// Sends a command to every lane; the answers will come here.
    fn command<T>(
        &self,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> Result<Vec<oneshot::Receiver<T>>, RolloutError> {
        let mut board = self.shared.board();
        if let Some(end) = &board.end {
            return Err(end.clone());
        }
        let mut answers = Vec::with_capacity(board.desks.len());
        for desk in &mut board.desks {
            let (reply, answer) = oneshot::channel();
            desk.commands.push_back(command(reply));
            answers.push(answer);
        }
        drop(board);
        self.shared.ring();
        Ok(answers)
    }

    fn wait(&self, after: Duration, what: &'static str) -> Wait {
        Wait { shared: Arc::clone(&self.shared), until: Instant::now() + after, after, what }
    }

    /// Tells the lanes to change over to these weights, or to none.
    fn switch(
        &self,
        weights: Option<&Weights>,
        in_flight: InFlight,
    ) -> Result<Vec<oneshot::Receiver<()>>, RolloutError> {
        if let Some(weights) = weights
            && !self.is_for(weights.model.config())
        {
            return Err(RolloutError::OtherModel { version: weights.version });
        }
        self.shared.board().version = weights.map(|w| w.version);
        self.command(|done| Command::Load(weights.cloned(), in_flight, done))
    }

    /// Whether weights of this shape fit the caches and buffers made for the engine's own.
    fn is_for(&self, other: &ModelConfig) -> bool {
        let shape =
            |c: &ModelConfig| (c.vocab_size, c.layers, c.kv_heads, c.head_dim, c.max_positions, c.dtype);
        shape(&self.config) == shape(other)
    }
}

/// Waits for lanes to answer a command.
struct Wait {
    shared: Arc<Shared>,
    until: Instant,
    after: Duration,
    what: &'static str,
}

impl Wait {
    async fn for_all<T>(self, answers: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, RolloutError> {
        let mut results = Vec::with_capacity(answers.len());
        for (lane, answer) in answers.into_iter().enumerate() {
            match timeout_at(self.until, answer).await {
                Ok(Ok(result)) => results.push(result),
                Ok(Err(_)) => return Err(self.shared.board().why_dropped(lane)),
                Err(_) => {
                    let report = self.shared.board().report(lane);
                    let waited_for = format!("rollout lane {lane} to {} ({report})", self.what);
                    return Err(RolloutError::Deadline { waited_for, after: self.after });
                }
            }
        }
        Ok(results)
    }
}

/// A request on its way.
struct Submitted {
    progress: Arc<Progress>,
    answer: oneshot::Receiver<Result<Generation, RolloutError>>,
}

fn invalid(request: &GenerateRequest, reason: impl Into<String>) -> RolloutError {
    RolloutError::InvalidRequest { request: RequestName(request.key), reason: reason.into() }
}

/// Blocks of each lane.
fn lane_blocks(
    config: &ModelConfig,
    settings: &RolloutSettings,
    lanes: usize,
) -> Result<usize, RolloutError> {
    let block_bytes = config.kv_bytes_per_token() * KV_BLOCK as u64;
    let affordable = |bytes: u64| (bytes / lanes as u64 / block_bytes) as usize;
    if settings.kv_memory_mib == 0 {
        let longest = blocks_for(config.max_positions);
        let useful = settings.max_batch.saturating_mul(longest);
        return Ok(useful.min(affordable(AUTOMATIC_KV_BYTES)).max(longest));
    }
    match affordable((settings.kv_memory_mib as u64) << 20) {
        0 => Err(RolloutError::NoBlocks {
            kv_memory_mib: settings.kv_memory_mib,
            lanes,
            needed_mib: (block_bytes * lanes as u64).div_ceil(1 << 20) as usize,
        }),
        // Block numbers are 32 bits wide.
        blocks => Ok(blocks.min(u32::MAX as usize / KV_BLOCK)),
    }
}

impl RolloutEngine for EmbeddedEngine {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let after = request.deadline.unwrap_or(self.deadline);
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
                    Err(shared.board().why_dropped(lane))
                }
                Err(_) => {
                    let board = shared.board();
                    let waited_for = match (progress.read(), board.version) {
                        (Some((lane, tokens)), _) => {
                            let report = board.report(lane);
                            format!("{name}: {tokens} of at most {limit} tokens ({report})")
                        }
                        (None, Some(PolicyVersion(version))) => {
                            format!("{name} to be started with policy version {version}")
                        }
                        (None, None) => format!("{name} to be started: no weights are loaded"),
                    };
                    Err(RolloutError::Deadline { waited_for, after })
                }
            }
        }
    }

    fn load(
        &self,
        weights: &Weights,
        in_flight: InFlight,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let wait = self.wait(self.deadline, "take new weights");
        let sent = self.switch(Some(weights), in_flight);
        async move { wait.for_all(sent?).await.map(drop) }
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let wait = self.wait(self.deadline, "let go of the weights");
        let sent = self.switch(None, InFlight::Finish);
        async move { wait.for_all(sent?).await.map(drop) }
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let withdrawn = self.shared.board().withdraw(|s| which.concerns(s.group, s.key));
        for sequence in withdrawn {
            sequence.finish(StopReason::Aborted);
        }
        let wait = self.wait(self.deadline, "abort requests");
        let sent = self.command(|done| Command::Abort(which, done));
        async move { wait.for_all(sent?).await.map(drop) }
    }

    fn health(&self, deadline: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        // What nobody waits for any more does not wait.
        drop(self.shared.board().withdraw(Sequence::is_cancelled));
        let wait = self.wait(deadline, "report");
        let sent = self.command(Command::Report);
        async move {
            let reports = wait.for_all(sent?).await?;
            let mut health = Health { version: reports.first().and_then(|r| r.version), ..Health::default() };
            for report in reports {
                health.running += report.running;
                health.waiting += report.waiting;
                health.used_blocks += report.used_blocks;
                health.blocks += report.blocks;
                // Lanes change over one by one; the oldest weights still in use are the engine's.
                health.version = health.version.min(report.version);
            }
            Ok(health)
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            exact_logprobs: true,
            batch_invariant: true,
            in_flight: &[InFlight::Finish, InFlight::Recompute, InFlight::Keep, InFlight::Abort],
            stop_strings: self.tokenizer.is_some(),
            context: self.config.max_positions,
        }
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        self.shared.end(RolloutError::ShutDown);
        let ended = self.shared.wait_for_end(self.deadline.min(SHUTDOWN_PATIENCE));
        for (thread, ended) in self.threads.drain(..).zip(ended) {
            if ended {
                // Lanes catch their own panics; there is nobody left to tell of another one.
                drop(thread.join());
            }
        }
    }
}
