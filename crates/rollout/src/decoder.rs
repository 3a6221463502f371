use std::sync::Arc;

use rloom_model::{KvCache, Model, ModelConfig, StepRow, StepScratch, RowRequest, Weights};
use rloom_ops::{Ctx, HeadOutput};
#[cfg(test)]
use rloom_ops::{HeadResult, HeadRequest, RowDraw};

/// The part of a lane that computes. The real one is [`ModelDecoder`]; tests put others in its place.
pub(crate) trait Decoder: Send + Sized {
    /// Another one like it, without weights, as it was when it was made: for a lane that starts again after this one
    /// failed in a way that leaves its state unknown.
    fn fresh(&self) -> Self;

    /// Where the lane's work runs.
    fn ctx(&self) -> &Ctx;

    /// Length of a row of logits.
    fn vocabulary(&self) -> usize;

    /// Takes other weights, or lets go of those it has.
    fn load(&mut self, weights: Option<&Weights>);

    /// Copies the keys and values of a block.
    fn copy_block(&mut self, from: u32, to: u32);

    /// A cache of exactly these blocks, copied; `None` when there is none to copy from.
    fn copy_out(&self, blocks: &[u32]) -> Option<KvCache>;

    /// Copies all blocks of a cache that [`copy_out`](Self::copy_out) made to these.
    fn copy_in(&mut self, from: &KvCache, blocks: &[u32]);

    /// Computes keys and values of all rows, and an answer for each of the wanted ones. An error leaves the decoder in a
    /// state unknown.
    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), String>;
}

/// A model with a cache.
#[derive(Debug)]
pub(crate) struct ModelDecoder {
    ctx: Ctx,
    config: ModelConfig,
    model: Option<Arc<Model>>,
    blocks: usize,
    /// Made at the first step.
    cache: Option<KvCache>,
    scratch: StepScratch,
    /// Whether to keep the cache's memory while there are no weights.
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

    fn load(&mut self, weights: Option<&Weights>) {
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
    ) -> Result<(), String> {
        let model = self.model.as_ref().ok_or("asked to decode without weights")?;
        let cache = self.cache.get_or_insert_with(|| KvCache::new(&self.config, self.blocks));
        model
            .step(&self.ctx, cache, rows, wanted, &mut self.scratch, answers)
            .map_err(|error| error.to_string())
    }
}

/// What a head answers where `logits_after` writes the logits after a row over zeros.
#[cfg(test)]
pub(crate) fn answer_by(
    answers: &mut HeadOutput,
    wanted: &[RowRequest],
    vocabulary: usize,
    mut logits_after: impl FnMut(usize, &mut [f32]) -> Result<(), String>,
) -> Result<(), String> {
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
            (HeadRequest::Logits, HeadResult::Token(_)) => return Err("no room was made for logits".to_owned()),
        }
    }
    Ok(())
}
