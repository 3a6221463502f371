use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_core::{PolicyVersion, RandomKey, RandomStream, StopReason, VersionSpan};
use rloom_model::KvCache;
use rloom_ops::{HeadRequest, Pick};
use tokio::sync::oneshot;

use crate::error::RequestName;
use crate::sampling::Sampler;
use crate::speculation::Lookup;
use crate::stop::StopWatch;
use crate::{GenerateRequest, Generation, RolloutError};

/// What the caller of a request may see of it while it waits: for the message when it has waited too long.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// 0 until a lane has started it, then the lane's number plus one.
    lane: AtomicUsize,
    tokens: AtomicUsize,
}

impl Progress {
    pub(crate) fn start(&self, lane: usize) {
        self.lane.store(lane + 1, Ordering::Relaxed);
    }

    /// The lane that started it, and the tokens it has chosen since.
    pub(crate) fn read(&self) -> Option<(usize, usize)> {
        let lane = self.lane.load(Ordering::Relaxed).checked_sub(1)?;
        Some((lane, self.tokens.load(Ordering::Relaxed)))
    }
}

/// A request's place in line; the lower goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: u64,
    /// Order of submission, given by the board: no two requests have the same.
    pub(crate) arrival: u64,
}

/// One request on its way through a lane.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) rank: Rank,
    pub(crate) key: RandomKey,
    pub(crate) group: Option<u64>,
    pub(crate) prompt: Arc<[u32]>,
    /// Prompt, the request's prefix, and what was chosen since.
    pub(crate) tokens: Vec<u32>,
    /// Blocks that hold the keys and values of the first `cached` tokens.
    pub(crate) blocks: Vec<u32>,
    pub(crate) cached: usize,
    /// Keys and values of its first tokens, so many, on their way from another lane's cache.
    pub(crate) carried: Option<(KvCache, usize)>,
    /// Whether it computes its group's prompt, which the others wait for.
    pub(crate) leads: bool,
    /// Whether a lane has begun to compute it, with whatever weights were in force.
    pub(crate) started: bool,
    pub(crate) sampler: Sampler,
    pub(crate) progress: Arc<Progress>,
    /// What it is expected to go on with, where drafts are made.
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
    reply: oneshot::Sender<Result<Generation, RolloutError>>,
}

impl Sequence {
    /// The sequence of a validated request. `watch` has not seen the prefix yet.
    pub(crate) fn new(
        request: GenerateRequest,
        watch: Option<StopWatch>,
        reply: oneshot::Sender<Result<Generation, RolloutError>>,
    ) -> Self {
        let GenerateRequest { key, prompt, prefix, sampling, stop_tokens, group, priority, deadline: _ } =
            request;
        let given = prompt.len() + prefix.len();
        let max_tokens = prompt.len() + sampling.max_new_tokens;
        let mut tokens = Vec::with_capacity(max_tokens);
        tokens.extend_from_slice(&prompt);
        tokens.extend_from_slice(&prefix);
        Self {
            rank: Rank { priority, arrival: 0 },
            key,
            group,
            tokens,
            blocks: Vec::new(),
            cached: 0,
            carried: None,
            leads: false,
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
            reply,
            prompt,
        }
    }

    /// Whether nobody waits for it any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.reply.is_closed()
    }

    /// Whether it has tokens of its own, beyond what its request gave.
    pub(crate) fn has_chosen(&self) -> bool {
        !self.logprobs.is_empty()
    }

    /// Whether no other weights have chosen any of its tokens.
    pub(crate) fn is_of(&self, version: PolicyVersion) -> bool {
        self.versions.iter().all(|span| span.version == version)
    }

    /// The random number of the token at a position.
    pub(crate) fn uniform(&self, position: usize) -> f64 {
        self.stream.uniform(position as u64)
    }

    /// Tokens that may not be chosen at a position.
    pub(crate) fn forbidden(&self, position: usize) -> &[u32] {
        if position < self.min_tokens { &self.stop_tokens } else { &[] }
    }

    /// What to ask of the head to choose the token at a position.
    pub(crate) fn ask(&self, position: usize, vocabulary: usize) -> HeadRequest {
        self.sampler.ask(vocabulary, self.forbidden(position), self.uniform(position))
    }

    /// Looks up what the tokens that it has went on with before.
    pub(crate) fn look_up(&mut self) {
        self.lookup.expect(&self.tokens, self.max_tokens);
    }

    /// The token at a position, or what is drafted for it.
    pub(crate) fn token_or_draft(&self, position: usize) -> u32 {
        match position.checked_sub(self.tokens.len()) {
            None => self.tokens[position],
            Some(ahead) => self.lookup.draft()[ahead],
        }
    }

    /// Shows the request's prefix to the stop rules: why the completion was over before it began, if it was.
    pub(crate) fn review_prefix(&mut self) -> Result<Option<StopReason>, RolloutError> {
        for position in self.prompt.len()..self.given {
            if let Some(stop) = self.verdict(position)? {
                return Ok(Some(stop));
            }
        }
        Ok(None)
    }

    /// Appends a chosen token: why the completion ends with it, if it does.
    pub(crate) fn push(
        &mut self,
        pick: Pick,
        version: PolicyVersion,
    ) -> Result<Option<StopReason>, RolloutError> {
        let at = self.logprobs.len();
        match self.versions.last_mut() {
            Some(span) if span.version == version => span.range.end = at + 1,
            _ => self.versions.push(VersionSpan { version, range: at..at + 1 }),
        }
        self.tokens.push(pick.token);
        self.logprobs.push(pick.logprob);
        self.progress.tokens.store(at + 1, Ordering::Relaxed);
        self.verdict(self.tokens.len() - 1)
    }

    /// Why the completion ends with the token at `position`, if it does. Sees each position once, in order.
    fn verdict(&mut self, position: usize) -> Result<Option<StopReason>, RolloutError> {
        let token = self.tokens[position];
        if position >= self.min_tokens && self.stop_tokens.contains(&token) {
            return Ok(Some(StopReason::StopToken));
        }
        if let Some(watch) = &mut self.watch {
            let complete = watch.completes(token).map_err(|error| RolloutError::Text {
                request: RequestName(self.key),
                cause: error.to_string(),
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
        };
        // A caller that has gone needs no answer.
        let _ = self.reply.send(Ok(generation));
    }

    /// Answers the request with an error.
    pub(crate) fn fail(self, error: RolloutError) {
        let _ = self.reply.send(Err(error));
    }
}
