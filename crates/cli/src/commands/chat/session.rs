//! One sequence that grows: what was read and what was written, with its keys and values.

use rloom_core::{Purpose, RandomKey, RandomStream};
use rloom_engine::SamplingSettings;
use rloom_model::{KvCache, Model, RowRequest, StepError, StepRow, StepScratch};
use rloom_ops::{Ctx, HeadOutput, HeadRequest, KV_BLOCK};
use rloom_run::Policy;
use rloom_run::assembly::{Prediction, SampleScratch, Sampler};

/// Longest conversation in tokens; the cache is made for it, or for the model's context where that is shorter.
const LONGEST: usize = 8192;
/// Tokens read in one step.
const CHUNK: usize = 128;

/// The conversation does not fit any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the conversation would have {wanted} tokens, and there is room for {room}")]
pub(super) struct Full {
    wanted: usize,
    room: usize,
}

/// Why there is no next token.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    #[diagnostic(transparent)]
    Step(#[from] StepError),
    #[error("the model gives no probabilities after token {position}: its weights are damaged")]
    NoProbabilities { position: usize },
}

pub(super) struct Session<'p> {
    policy: &'p Policy,
    ctx: Ctx,
    sampling: SamplingSettings,
    sampler: Sampler,
    stream: RandomStream,
    stop_tokens: std::sync::Arc<[u32]>,
    cache: KvCache,
    blocks: Vec<u32>,
    scratch: StepScratch,
    picks: SampleScratch,
    answers: HeadOutput,
    /// Tokens whose keys and values are in the cache.
    cached: usize,
    /// Tokens that are not.
    pending: Vec<u32>,
    /// Tokens of the current answer.
    answered: usize,
    /// The stop token that ended the last answer.
    ended_by: Option<u32>,
    room: usize,
}

impl<'p> Session<'p> {
    pub(super) fn new(policy: &'p Policy, ctx: Ctx, sampling: SamplingSettings, seed: u64) -> Self {
        let model: &Model = &policy.model;
        let room = model.config().max_positions.min(LONGEST);
        let blocks = room.div_ceil(KV_BLOCK);
        Self {
            policy,
            ctx,
            sampler: Sampler::new(&sampling),
            sampling,
            stream: RandomKey::new(seed, 0, Purpose::Interactive, 0).stream(),
            stop_tokens: policy.stop_tokens(),
            cache: KvCache::new(model.config(), blocks),
            blocks: (0..blocks as u32).collect(),
            scratch: StepScratch::default(),
            picks: SampleScratch::default(),
            answers: HeadOutput::default(),
            cached: 0,
            pending: Vec::new(),
            answered: 0,
            ended_by: None,
            room,
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.cached = 0;
        self.pending.clear();
        self.ended_by = None;
    }

    /// The text of the token that ended the last answer; empty when its length did.
    pub(super) fn turn_end(&self) -> String {
        self.ended_by.and_then(|token| self.policy.tokenizer.decode(&[token], false).ok()).unwrap_or_default()
    }

    /// Takes tokens that were not sampled, and begins an answer to them.
    pub(super) fn read(&mut self, tokens: &[u32]) -> Result<(), Full> {
        let wanted = self.cached + self.pending.len() + tokens.len() + 1;
        if wanted > self.room {
            return Err(Full { wanted, room: self.room });
        }
        self.pending.extend_from_slice(tokens);
        self.answered = 0;
        self.ended_by = None;
        Ok(())
    }

    /// Samples the next token of the answer. `None` at its end.
    pub(super) fn next(&mut self) -> Result<Option<u32>, SessionError> {
        let length = self.cached + self.pending.len();
        if self.ended_by.is_some() || self.answered == self.sampling.max_new_tokens || length >= self.room {
            return Ok(None);
        }
        let uniform = self.stream.uniform(length as u64);
        self.compute(self.sampler.request(self.policy.model.config().vocab_size, &[], uniform))?;
        let given = Prediction::of(&self.answers, 0);
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

    /// Puts the pending tokens into the cache; what is asked of the last of them is left in `answers`.
    fn compute(&mut self, ask: HeadRequest) -> Result<(), StepError> {
        let pending = std::mem::take(&mut self.pending);
        let chunks = pending.chunks(CHUNK).count();
        for (i, chunk) in pending.chunks(CHUNK).enumerate() {
            let row = |(offset, &token): (usize, &u32)| StepRow {
                token,
                position: (self.cached + offset) as u32,
                blocks: &self.blocks,
            };
            let rows: Vec<StepRow<'_>> = chunk.iter().enumerate().map(row).collect();
            let last = [RowRequest { row: chunk.len() as u32 - 1, request: ask }];
            let wanted: &[RowRequest] = if i + 1 == chunks { &last } else { &[] };
            let model = &self.policy.model;
            model.step(&self.ctx, &mut self.cache, &rows, wanted, &mut self.scratch, &mut self.answers)?;
            self.cached += chunk.len();
        }
        Ok(())
    }
}
