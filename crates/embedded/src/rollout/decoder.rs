use std::sync::Arc;

use rloom_model::{KvCache, Model, ModelConfig, RowRequest, StepError, StepRow, StepScratch};
use rloom_ops::{Ctx, HeadOutput};
#[cfg(test)]
use rloom_ops::{HeadRequest, HeadResult, RowDraw};

use super::weights::LoadedWeights;

/// Failure of a decoder's step.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub(crate) enum DecodeError {
    /// A step without weights.
    #[error("a step was requested while no weights are loaded")]
    NoWeights,
    /// The model refused the step.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(#[from] StepError),
    /// A failure injected by a test.
    #[cfg(test)]
    #[error("{0}")]
    Injected(&'static str),
}

/// The computing part of a lane: [`ModelDecoder`], or a substitute in tests.
pub(crate) trait Decoder: Send + Sized {
    /// Creates a decoder like this one in its initial state, without weights. A lane uses it to restart after a failure
    /// that leaves the state of this one undefined.
    fn fresh(&self) -> Self;

    /// Compute context of the lane.
    fn ctx(&self) -> &Ctx;

    /// Length of a row of logits.
    fn vocabulary(&self) -> usize;

    /// Loads other weights, or releases the current ones.
    fn load(&mut self, weights: Option<&LoadedWeights>);

    /// Copies the keys and values of a block.
    fn copy_block(&mut self, from: u32, to: u32);

    /// A cache with copies of exactly these blocks; `None` if there is no cache yet.
    fn copy_out(&self, blocks: &[u32]) -> Option<KvCache>;

    /// Copies all blocks of a cache created by [`copy_out`](Self::copy_out) to these blocks.
    fn copy_in(&mut self, from: &KvCache, blocks: &[u32]);

    /// Computes keys and values of all rows, and an answer for each wanted row. An error leaves the decoder in an
    /// undefined state.
    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), DecodeError>;
}

/// A model with a cache.
#[derive(Debug)]
pub(crate) struct ModelDecoder {
    ctx: Ctx,
    config: ModelConfig,
    model: Option<Arc<Model>>,
    blocks: usize,
    /// Allocated at the first step.
    cache: Option<KvCache>,
    scratch: StepScratch,
    /// Keeps the memory of the cache while no weights are loaded.
    keeps_cache: bool,
}

impl ModelDecoder {
    pub(crate) fn new(ctx: Ctx, config: ModelConfig, blocks: usize, keeps_cache: bool) -> Self {
        Self { ctx, config, model: None, blocks, cache: None, scratch: StepScratch::default(), keeps_cache }
    }
}

impl Decoder for ModelDecoder {
    fn fresh(&self) -> Self {
        Self::new(self.ctx.clone(), self.config.clone(), self.blocks, self.keeps_cache)
    }

    fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    fn vocabulary(&self) -> usize {
        self.config.vocab_size
    }

    fn load(&mut self, weights: Option<&LoadedWeights>) {
        self.model = weights.map(|weights| Arc::clone(&weights.model));
        if self.model.is_none() && !self.keeps_cache {
            self.cache = None;
            self.scratch = StepScratch::default();
        }
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        if let Some(cache) = &mut self.cache {
            cache.copy_block(from, to);
        }
    }

    fn copy_out(&self, blocks: &[u32]) -> Option<KvCache> {
        let cache = self.cache.as_ref()?;
        let mut copy = KvCache::new(&self.config, blocks.len());
        for (to, &from) in (0..).zip(blocks) {
            copy.copy_from(to, cache, from);
        }
        Some(copy)
    }

    fn copy_in(&mut self, from: &KvCache, blocks: &[u32]) {
        let cache = self.cache.get_or_insert_with(|| KvCache::new(&self.config, self.blocks));
        for (source, &to) in (0..).zip(blocks) {
            cache.copy_from(to, from, source);
        }
    }

    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), DecodeError> {
        let model = self.model.as_ref().ok_or(DecodeError::NoWeights)?;
        let cache = self.cache.get_or_insert_with(|| KvCache::new(&self.config, self.blocks));
        model.step(&self.ctx, cache, rows, wanted, &mut self.scratch, answers)?;
        Ok(())
    }
}

/// Answers as a head does. `logits_after` overwrites zeros with the logits after a row.
#[cfg(test)]
pub(crate) fn answer_by(
    answers: &mut HeadOutput,
    wanted: &[RowRequest],
    vocabulary: usize,
    mut logits_after: impl FnMut(usize, &mut [f32]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let asks: Vec<HeadRequest> = wanted.iter().map(|wanted| wanted.request).collect();
    answers.reset(&asks, vocabulary);
    for (wanted, answer) in wanted.iter().zip(&mut answers.results) {
        let mut logits = vec![0.0; vocabulary];
        logits_after(wanted.row as usize, &mut logits)?;
        match (wanted.request, answer) {
            (HeadRequest::Token(draw), answer) => {
                *answer = HeadResult::Token(RowDraw::default().draw(&logits, draw));
            }
            (HeadRequest::Logits, HeadResult::Logits(range)) => {
                answers.logits.as_mut_slice()[range.clone()].copy_from_slice(&logits);
            }
            (HeadRequest::Logits, HeadResult::Token(_)) => {
                return Err(DecodeError::Injected("no room for logits"));
            }
        }
    }
    Ok(())
}
