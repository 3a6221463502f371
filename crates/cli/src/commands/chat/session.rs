//! Token sequence of a conversation, with its key-value cache and sampling state.

use std::sync::Arc;

use rloom_core::{Purpose, RandomKey, RandomStream};
use rloom_engine::SamplingSettings;
use rloom_model::{KvCache, Model, RowRequest, StepError, StepRow, StepScratch};
use rloom_ops::{Ctx, HeadOutput, HeadRequest, KV_BLOCK};
use rloom_run::Policy;
use rloom_run::assembly::{Prediction, SampleScratch, Sampler};

/// Maximum length of a conversation in tokens, if the model's context is not shorter. Determines the size of the cache.
const MAX_TOKENS: usize = 8192;
/// Maximum number of tokens processed in one step.
const CHUNK: usize = 128;

/// The conversation exceeds the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the conversation needs {wanted} tokens, but the context holds {capacity}")]
pub(super) struct ContextFull {
    wanted: usize,
    capacity: usize,
}

/// Error of sampling the next token.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    #[diagnostic(transparent)]
    Step(#[from] StepError),
    #[error("the model's probabilities after token {position} are not finite: its weights are damaged")]
    NoProbabilities { position: usize },
}

/// Keys and values of a sequence, and the memory to compute more of them.
struct Context {
    ctx: Ctx,
    cache: KvCache,
    blocks: Vec<u32>,
    scratch: StepScratch,
    head_output: HeadOutput,
    /// Number of tokens in the cache.
    cached: usize,
}

impl Context {
    /// An empty context for sequences of up to `capacity` tokens.
    fn new(ctx: Ctx, model: &Model, capacity: usize) -> Self {
        let blocks = capacity.div_ceil(KV_BLOCK);
        Self {
            ctx,
            cache: KvCache::new(model.config(), blocks),
            blocks: (0..blocks as u32).collect(),
            scratch: StepScratch::default(),
            head_output: HeadOutput::default(),
            cached: 0,
        }
    }

    /// Adds tokens to the cache. The answer to `request`, for the last of them, is left in `head_output`.
    fn extend(&mut self, model: &Model, tokens: &[u32], request: HeadRequest) -> Result<(), StepError> {
        let chunks = tokens.chunks(CHUNK).count();
        for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
            let row = |(offset, &token): (usize, &u32)| StepRow {
                token,
                position: (self.cached + offset) as u32,
                blocks: &self.blocks,
            };
            let rows: Vec<StepRow<'_>> = chunk.iter().enumerate().map(row).collect();
            let last = [RowRequest { row: chunk.len() as u32 - 1, request }];
            let wanted: &[RowRequest] = if i + 1 == chunks { &last } else { &[] };
            model.step(
                &self.ctx,
                &mut self.cache,
                &rows,
                wanted,
                &mut self.scratch,
                &mut self.head_output,
            )?;
            self.cached += chunk.len();
        }
        Ok(())
    }
}

pub(super) struct Session<'p> {
    policy: &'p Policy,
    model: Arc<Model>,
    sampling: SamplingSettings,
    sampler: Sampler,
    stream: RandomStream,
    stop_tokens: Arc<[u32]>,
    picks: SampleScratch,
    context: Context,
    /// Tokens whose keys and values are not in the cache yet.
    pending: Vec<u32>,
    /// Number of tokens of the current answer.
    answered: usize,
    /// Stop token that ended the last answer.
    ended_by: Option<u32>,
    /// Maximum length of the conversation in tokens.
    capacity: usize,
}

impl<'p> Session<'p> {
    pub(super) fn new(
        policy: &'p Policy,
        model: Arc<Model>,
        ctx: Ctx,
        sampling: SamplingSettings,
        seed: u64,
    ) -> Self {
        let capacity = model.config().max_positions.min(MAX_TOKENS);
        Self {
            context: Context::new(ctx, &model, capacity),
            policy,
            model,
            sampler: Sampler::new(&sampling),
            sampling,
            stream: RandomKey::new(seed, 0, Purpose::Interactive, 0).stream(),
            stop_tokens: policy.stop_tokens(),
            picks: SampleScratch::default(),
            pending: Vec::new(),
            answered: 0,
            ended_by: None,
            capacity,
        }
    }

    /// Removes all tokens.
    pub(super) fn clear(&mut self) {
        self.context.cached = 0;
        self.pending.clear();
        self.ended_by = None;
    }

    /// Text of the stop token that ended the last answer; empty if it ended at the length limit.
    pub(super) fn turn_end(&self) -> String {
        self.ended_by.and_then(|token| self.policy.tokenizer.decode(&[token], false).ok()).unwrap_or_default()
    }

    /// Appends tokens that were not sampled, and starts a new answer.
    pub(super) fn append(&mut self, tokens: &[u32]) -> Result<(), ContextFull> {
        let wanted = self.context.cached + self.pending.len() + tokens.len() + 1;
        if wanted > self.capacity {
            return Err(ContextFull { wanted, capacity: self.capacity });
        }
        self.pending.extend_from_slice(tokens);
        self.answered = 0;
        self.ended_by = None;
        Ok(())
    }

    /// Samples the next token of the answer. Returns `None` at its end.
    pub(super) fn next(&mut self) -> Result<Option<u32>, SessionError> {
        let length = self.context.cached + self.pending.len();
        if self.ended_by.is_some() || self.answered == self.sampling.max_new_tokens || length >= self.capacity
        {
            return Ok(None);
        }
        let uniform = self.stream.uniform(length as u64);
        let model: &Model = &self.model;
        let request = self.sampler.request(model.config().vocab_size, &[], uniform);
        self.context.extend(model, &std::mem::take(&mut self.pending), request)?;
        let given = Prediction::of(&self.context.head_output, 0);
        let pick = given.and_then(|given| self.sampler.choose(given, &[], uniform, &mut self.picks));
        let token = pick.ok_or(SessionError::NoProbabilities { position: length })?.token;
        self.pending.push(token);
        self.answered += 1;
        if self.stop_tokens.contains(&token) {
            self.ended_by = Some(token);
            return Ok(None);
        }
        Ok(Some(token))
    }
}
