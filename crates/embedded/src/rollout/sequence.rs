use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_core::{ErrorText, PolicyId, RandomKey, RandomStream, StopReason, VersionSpan};
use rloom_model::KvCache;
use rloom_ops::{HeadRequest, Pick};
use tokio::sync::oneshot;

use crate::rollout::sampling::Sampler;
use crate::rollout::speculation::Lookup;
use crate::rollout::stop::StopWatch;
use rloom_engine::RequestName;
use rloom_engine::{
    GenerateRequest, Generation, PolicyLabel, ReusedTokens, RolloutError, SampledToken, TokenSink,
};

/// Progress of a request, read by its caller for timeout messages.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// 0 until a lane starts the request, then the lane's index plus one.
    lane: AtomicUsize,
    tokens: AtomicUsize,
}

impl Progress {
    pub(crate) fn start(&self, lane: usize) {
        self.lane.store(lane + 1, Ordering::Relaxed);
    }

    /// Lane that started the request, and tokens sampled since.
    pub(crate) fn read(&self) -> Option<(usize, usize)> {
        let lane = self.lane.load(Ordering::Relaxed).checked_sub(1)?;
        Some((lane, self.tokens.load(Ordering::Relaxed)))
    }
}

/// Scheduling order of a request; lower ranks run first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: u64,
    /// Order of submission, assigned by the dispatcher; unique.
    pub(crate) arrival: u64,
}

/// Keys and values of a sequence's first tokens.
#[derive(Debug, Default)]
pub(crate) struct CachedTokens {
    /// Blocks of the lane's cache.
    pub(crate) blocks: Vec<u32>,
    /// Number of tokens in them.
    pub(crate) tokens: usize,
    /// Number of its first blocks that are recorded under their tokens.
    pub(crate) recorded: usize,
    /// The keys and values are of several versions of the weights: no other sequence may use them.
    pub(crate) mixed: bool,
    /// Keys and values of that number of first tokens, copied from another lane's cache.
    pub(crate) carried: Option<(KvCache, usize)>,
}

/// State of a request from submission to its answer.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) rank: Rank,
    pub(crate) policy: PolicyId,
    pub(crate) key: RandomKey,
    pub(crate) group: Option<u64>,
    pub(crate) prompt: Arc<[u32]>,
    /// Prompt, the request's prefix, and the tokens sampled since.
    pub(crate) tokens: Vec<u32>,
    pub(crate) cache: CachedTokens,
    /// A lane has begun to compute it.
    pub(crate) started: bool,
    pub(crate) sampler: Sampler,
    pub(crate) progress: Arc<Progress>,
    /// Source of drafts.
    pub(crate) lookup: Lookup,
    stream: RandomStream,
    given: usize,
    max_tokens: usize,
    min_tokens: usize,
    stop_tokens: Arc<[u32]>,
    watch: Option<StopWatch>,
    logprobs: Vec<f32>,
    versions: Vec<VersionSpan>,
    temperature: f32,
    sink: Option<TokenSink>,
    reused: Option<ReusedTokens>,
    reply: oneshot::Sender<Result<Generation, RolloutError>>,
}

impl Sequence {
    /// Sequence of a validated request. `watch` has not seen the prefix yet.
    pub(crate) fn new(
        request: GenerateRequest,
        watch: Option<StopWatch>,
        reply: oneshot::Sender<Result<Generation, RolloutError>>,
    ) -> Self {
        // The engine refuses attachments, has a use for groups but not for sessions, and enforces the timeout.
        let GenerateRequest {
            policy,
            key,
            prompt,
            prefix,
            sampling,
            stop_tokens,
            group,
            priority,
            sink,
            reused,
            ..
        } = request;
        let given = prompt.len() + prefix.len();
        let max_tokens = prompt.len() + sampling.max_new_tokens;
        let mut tokens = Vec::with_capacity(max_tokens);
        tokens.extend_from_slice(&prompt);
        tokens.extend_from_slice(&prefix);
        Self {
            rank: Rank { priority, arrival: 0 },
            policy,
            key,
            group,
            tokens,
            cache: CachedTokens::default(),
            started: false,
            sampler: Sampler::new(&sampling),
            progress: Arc::new(Progress::default()),
            lookup: Lookup::default(),
            stream: key.stream(),
            given,
            max_tokens,
            min_tokens: prompt.len() + sampling.min_new_tokens,
            stop_tokens,
            watch,
            logprobs: Vec::new(),
            versions: Vec::new(),
            temperature: sampling.reported_temperature(),
            sink,
            reused,
            reply,
            prompt,
        }
    }

    /// Notes that a lane starts to compute it, for the first time or again.
    pub(crate) fn start(&mut self, lane: usize) {
        if let Some(reused) = &self.reused
            && !self.started
        {
            reused.set(self.cache.tokens.min(self.prompt.len()));
        }
        self.started = true;
        self.progress.start(lane);
    }

    /// True if the caller has dropped the request.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.reply.is_closed()
    }

    /// True once a token was sampled.
    pub(crate) fn has_sampled(&self) -> bool {
        !self.logprobs.is_empty()
    }

    /// True if all tokens sampled so far are of this version.
    pub(crate) fn is_of(&self, label: PolicyLabel) -> bool {
        self.versions.iter().all(|span| (span.policy, span.version) == (label.policy, label.version))
    }

    /// Random number of the token at a position.
    pub(crate) fn uniform(&self, position: usize) -> f64 {
        self.stream.uniform(position as u64)
    }

    /// Tokens that may not be sampled at a position.
    pub(crate) fn forbidden(&self, position: usize) -> &[u32] {
        if position < self.min_tokens { &self.stop_tokens } else { &[] }
    }

    /// Request to the head for the token at a position.
    pub(crate) fn request(&self, position: usize, vocabulary: usize) -> HeadRequest {
        self.sampler.request(vocabulary, self.forbidden(position), self.uniform(position))
    }

    /// Looks up the continuation of its latest tokens.
    pub(crate) fn look_up(&mut self) {
        self.lookup.expect(&self.tokens, self.max_tokens);
    }

    /// Token at a position, or its draft.
    pub(crate) fn token_or_draft(&self, position: usize) -> u32 {
        match position.checked_sub(self.tokens.len()) {
            None => self.tokens[position],
            Some(ahead) => self.lookup.draft()[ahead],
        }
    }

    /// Applies the stop rules to the request's prefix; returns the stop reason if the completion is already over.
    pub(crate) fn check_prefix(&mut self) -> Result<Option<StopReason>, RolloutError> {
        for position in self.prompt.len()..self.given {
            if let Some(stop) = self.stop_at(position)? {
                return Ok(Some(stop));
            }
        }
        Ok(None)
    }

    /// Appends a sampled token; returns the stop reason if the completion ends with it.
    pub(crate) fn push(
        &mut self,
        pick: Pick,
        label: PolicyLabel,
    ) -> Result<Option<StopReason>, RolloutError> {
        let at = self.logprobs.len();
        match self.versions.last_mut() {
            Some(span) if (span.policy, span.version) == (label.policy, label.version) => {
                span.range.end = at + 1;
            }
            _ => self.versions.push(VersionSpan {
                policy: label.policy,
                version: label.version,
                range: at..at + 1,
            }),
        }
        self.tokens.push(pick.token);
        self.logprobs.push(pick.logprob);
        self.progress.tokens.store(at + 1, Ordering::Relaxed);
        if let Some(sink) = &self.sink {
            sink.send(SampledToken { token: pick.token, logprob: pick.logprob });
        }
        self.stop_at(self.tokens.len() - 1)
    }

    /// Returns the stop reason if the completion ends with the token at `position`. Called once per position, in order.
    fn stop_at(&mut self, position: usize) -> Result<Option<StopReason>, RolloutError> {
        let token = self.tokens[position];
        if position >= self.min_tokens && self.stop_tokens.contains(&token) {
            return Ok(Some(StopReason::StopToken));
        }
        if let Some(watch) = &mut self.watch {
            let complete = watch.completes(token).map_err(|error| RolloutError::Text {
                request: RequestName(self.key),
                cause: ErrorText::of(&error),
            })?;
            if complete {
                return Ok(Some(StopReason::StopString));
            }
        }
        Ok((position + 1 >= self.max_tokens).then_some(StopReason::Length))
    }

    /// Answers the request.
    pub(crate) fn finish(mut self, stop: StopReason) {
        let tokens = self.tokens.split_off(self.given);
        let generation = Generation {
            tokens,
            logprobs: self.logprobs,
            temperature: self.temperature,
            versions: self.versions,
            stop,
            replica: None,
        };
        // The caller may have dropped the request.
        let _ = self.reply.send(Ok(generation));
    }

    /// Answers the request with an error.
    pub(crate) fn fail(self, error: RolloutError) {
        let _ = self.reply.send(Err(error));
    }
}
