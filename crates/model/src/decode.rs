//! Decoding: rows of many sequences at once, prompts and single tokens mixed, over a cache of keys and values.

use rloom_ops::{self as ops, Buf, CachedRow, Ctx, KV_BLOCK, KvLayer};

use crate::layer::Residual;
use crate::model::attention_shape;
use crate::{Model, ModelConfig};

/// Keys and values of all layers, in blocks of [`KV_BLOCK`] tokens. Which sequence owns which block is the caller's
/// to know.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<KvLayer>,
    blocks: usize,
}

impl KvCache {
    /// A cache of `blocks` blocks for models of this shape.
    pub fn new(config: &ModelConfig, blocks: usize) -> Self {
        let shape = attention_shape(config);
        Self { layers: (0..config.layers).map(|_| KvLayer::new(blocks, shape)).collect(), blocks }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Memory of one block over all layers, in bytes.
    pub fn bytes_per_block(&self) -> usize {
        self.layers.iter().map(KvLayer::bytes).sum::<usize>() / self.blocks.max(1)
    }

    /// Copies a block in all layers: what two sequences share stays, what one of them adds goes to its own.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        for layer in &mut self.layers {
            ops::kv_copy_block(layer, from, to);
        }
    }
}

/// One token of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct StepRow<'a> {
    /// The token.
    pub token: u32,
    /// Its position in its sequence. All earlier positions are in the cache, or are rows of the same step.
    pub position: u32,
    /// The sequence's blocks, in order; block `position / KV_BLOCK` must not be written by another sequence.
    pub blocks: &'a [u32],
}

/// Memory of a step, kept from one to the next.
#[derive(Debug, Default)]
pub struct StepScratch {
    x: Buf,
    normed: Buf,
    rstd: Buf,
    q: Buf,
    k: Buf,
    v: Buf,
    q_normed: Buf,
    k_normed: Buf,
    attended: Buf,
    gate_up: Buf,
    hidden: Buf,
}

/// A step that the model cannot compute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A token is not in the vocabulary.
    #[error(
        "token {token} (row {row}) is outside of the vocabulary of {vocab_size}\nhint: tokenizer and model do not belong together"
    )]
    Token {
        /// The token.
        token: u32,
        /// Its row.
        row: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A sequence has outgrown the model.
    #[error("position {position} (row {row}) is beyond the {max} positions of the model")]
    Position {
        /// The position.
        position: u32,
        /// Its row.
        row: usize,
        /// The model's limit.
        max: usize,
    },
    /// A row's blocks do not reach its position, or are not in the cache.
    #[error(
        "row {row}: its {blocks} blocks do not hold position {position} of a cache of {cache_blocks} blocks"
    )]
    Blocks {
        /// The row.
        row: usize,
        /// Blocks given.
        blocks: usize,
        /// Its position.
        position: u32,
        /// Blocks of the cache.
        cache_blocks: usize,
    },
    /// Logits are wanted of a row that is not there.
    #[error("logits of row {row} are wanted, the step has {rows} rows")]
    Wanted {
        /// The row.
        row: u32,
        /// Rows of the step.
        rows: usize,
    },
    /// A critic samples nothing.
    #[error("a critic has no language head to sample from\nhint: only its policy generates")]
    NoLanguageHead,
    /// The cache was made for a model of another shape.
    #[error("the cache has {cache} layers, the model {model}")]
    Cache {
        /// Layers of the cache.
        cache: usize,
        /// Layers of the model.
        model: usize,
    },
}

impl Model {
    /// Computes R rows: writes their keys and values to the cache, attends, and gives the logits after each of the
    /// `wanted` rows, `[wanted, V]` (resized to fit). The bits of a row depend on its own sequence alone and equal
    /// those of [`Model::forward`].
    ///
    /// # Panics
    ///
    /// If `cache` was made for heads of another shape.
    pub fn step(
        &self,
        ctx: &Ctx,
        cache: &mut KvCache,
        rows: &[StepRow<'_>],
        wanted: &[u32],
        scratch: &mut StepScratch,
        logits: &mut Buf,
    ) -> Result<(), StepError> {
        self.check_step(cache, rows, wanted)?;
        let c = self.config();
        let (r, d, e) = (rows.len(), c.hidden_size, c.head_dim);
        logits.resize(wanted.len() * c.vocab_size);
        if rows.is_empty() {
            return Ok(());
        }
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.position).collect();
        let slots: Vec<u32> = rows.iter().map(StepRow::slot).collect();
        let reach: Vec<CachedRow<'_>> =
            rows.iter().map(|row| CachedRow { blocks: row.blocks, len: row.position as usize + 1 }).collect();
        let furthest = positions.iter().max().map_or(0, |&position| position as usize + 1);
        let table = self.rope().at_least(c, furthest);
        let packed = self.packed(ctx);
        let head = packed.head.as_ref().ok_or(StepError::NoLanguageHead)?;
        let s = scratch;
        s.resize(c, r);

        ops::embedding(ctx, &mut s.x, &self.weights().embedding, &tokens, d);
        for (index, kv) in cache.layers.iter_mut().enumerate() {
            let layer = self.layer(packed, index);
            layer.attention_norm(ctx, &mut s.normed, &mut s.rstd, &s.x, r);
            layer.project(ctx, &s.normed, r, &mut s.q, &mut s.k, &mut s.v);
            if let Some([wq, wk]) = &layer.weights.qk_norm {
                s.rstd.resize(r * c.heads);
                layer.q_norm(ctx, &mut s.q_normed, &mut s.rstd, &s.q, r, wq);
                s.rstd.resize(r * c.kv_heads);
                layer.k_norm(ctx, &mut s.k_normed, &mut s.rstd, &s.k, r, wk);
                s.rstd.resize(r);
                std::mem::swap(&mut s.q, &mut s.q_normed);
                std::mem::swap(&mut s.k, &mut s.k_normed);
            }
            layer.rope(ctx, &mut s.q, &mut s.k, &positions, &table);
            ops::kv_write(ctx, kv, &s.k, &s.v, &slots);
            ops::attention_cached(ctx, &mut s.attended, &s.q, kv, &reach);
            layer.output(ctx, Residual::InPlace(&mut s.x), &s.attended, r);
            layer.mlp_norm(ctx, &mut s.normed, &mut s.rstd, &s.x, r);
            let residual = Residual::InPlace(&mut s.x);
            layer.mlp(ctx, residual, &s.normed, r, &mut s.gate_up, &mut s.hidden);
        }
        let w = wanted.len();
        if w > 0 {
            s.attended.resize(w * d);
            s.normed.resize(w * d);
            s.rstd.resize(w);
            ops::gather_rows(ctx, &mut s.attended, &s.x, wanted, d);
            let (norm, eps) = (&self.weights().norm, c.rms_norm_eps as f32);
            ops::rms_norm(ctx, &mut s.normed, &mut s.rstd, &s.attended, norm, w, d, eps);
            ops::head_logits(ctx, logits, &s.normed, w, head);
        }
        debug_assert_eq!(s.q.len(), r * c.heads * e);
        Ok(())
    }

    fn check_step(&self, cache: &KvCache, rows: &[StepRow<'_>], wanted: &[u32]) -> Result<(), StepError> {
        let c = self.config();
        if cache.layers.len() != c.layers {
            return Err(StepError::Cache { cache: cache.layers.len(), model: c.layers });
        }
        for (index, row) in rows.iter().enumerate() {
            if row.token as usize >= c.vocab_size {
                return Err(StepError::Token { token: row.token, row: index, vocab_size: c.vocab_size });
            }
            if row.position as usize >= c.max_positions {
                return Err(StepError::Position { position: row.position, row: index, max: c.max_positions });
            }
            let needed = row.position as usize / KV_BLOCK + 1;
            let within = |blocks: &[u32]| blocks.iter().all(|&block| (block as usize) < cache.blocks);
            if !row.blocks.get(..needed).is_some_and(within) {
                return Err(StepError::Blocks {
                    row: index,
                    blocks: row.blocks.len(),
                    position: row.position,
                    cache_blocks: cache.blocks,
                });
            }
        }
        match wanted.iter().find(|&&row| row as usize >= rows.len()) {
            Some(&row) => Err(StepError::Wanted { row, rows: rows.len() }),
            None => Ok(()),
        }
    }
}

impl StepRow<'_> {
    /// Where its key and value go.
    fn slot(&self) -> u32 {
        let position = self.position as usize;
        self.blocks[position / KV_BLOCK] * KV_BLOCK as u32 + (position % KV_BLOCK) as u32
    }
}

impl StepScratch {
    fn resize(&mut self, c: &ModelConfig, r: usize) {
        let (d, f, he, ge) =
            (c.hidden_size, c.intermediate_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        self.x.resize(r * d);
        self.normed.resize(r * d);
        self.rstd.resize(r);
        self.q.resize(r * he);
        self.k.resize(r * ge);
        self.v.resize(r * ge);
        if c.qk_norm() {
            self.q_normed.resize(r * he);
            self.k_normed.resize(r * ge);
        }
        self.attended.resize(r * he);
        self.gate_up.resize(r * 2 * f);
        self.hidden.resize(r * f);
    }
}
