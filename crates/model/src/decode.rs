//! Decoding: rows of many sequences at once, prompts and single tokens mixed, over a cache of keys and values.

use rloom_ops::{
    self as ops, Bf16, Buf, CachedRow, Ctx, Element, HeadAsk, HeadOutput, KV_BLOCK, KvLayer, Turn,
};

use crate::model::attention_shape;
use crate::packed::{PackedSet, PackedWeights};
use crate::{Compute, Model, ModelConfig};

/// Keys and values of all layers, in blocks of [`KV_BLOCK`] tokens. Which sequence owns which block is the caller's
/// to know.
#[derive(Debug)]
pub struct KvCache {
    layers: KvLayers,
    blocks: usize,
}

/// In the compute format of the model.
#[derive(Debug)]
enum KvLayers {
    F32(Vec<KvLayer<f32>>),
    Bf16(Vec<KvLayer<Bf16>>),
}

impl KvCache {
    /// A cache of `blocks` blocks for models of this shape and compute format.
    pub fn new(config: &ModelConfig, blocks: usize) -> Self {
        fn layers<E: Element>(config: &ModelConfig, blocks: usize) -> Vec<KvLayer<E>> {
            (0..config.layers).map(|_| KvLayer::new(blocks, attention_shape(config))).collect()
        }
        let layers = match config.compute {
            Compute::F32 => KvLayers::F32(layers(config, blocks)),
            Compute::Bf16 => KvLayers::Bf16(layers(config, blocks)),
        };
        Self { layers, blocks }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Memory of one block over all layers, in bytes.
    pub fn bytes_per_block(&self) -> usize {
        let bytes: usize = match &self.layers {
            KvLayers::F32(layers) => layers.iter().map(KvLayer::bytes).sum(),
            KvLayers::Bf16(layers) => layers.iter().map(KvLayer::bytes).sum(),
        };
        bytes / self.blocks.max(1)
    }

    /// Copies a block in all layers: what two sequences share stays, what one of them adds goes to its own.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        match &mut self.layers {
            KvLayers::F32(layers) => layers.iter_mut().for_each(|layer| ops::kv_copy_block(layer, from, to)),
            KvLayers::Bf16(layers) => layers.iter_mut().for_each(|layer| ops::kv_copy_block(layer, from, to)),
        }
    }

    /// Copies a block of another cache in all layers, for a sequence that goes on in this one.
    ///
    /// # Panics
    ///
    /// If the other cache is for models of another shape or compute format, or there is no such block.
    pub fn copy_from(&mut self, to: u32, other: &Self, from: u32) {
        assert_eq!(self.shape(), other.shape(), "caches of other layers or compute formats");
        match (&mut self.layers, &other.layers) {
            (KvLayers::F32(layers), KvLayers::F32(others)) => copy_from(layers, to, others, from),
            (KvLayers::Bf16(layers), KvLayers::Bf16(others)) => copy_from(layers, to, others, from),
            (KvLayers::F32(_), KvLayers::Bf16(_)) | (KvLayers::Bf16(_), KvLayers::F32(_)) => {}
        }
    }

    /// Layers there are, and their format.
    fn shape(&self) -> (usize, Compute) {
        match &self.layers {
            KvLayers::F32(layers) => (layers.len(), Compute::F32),
            KvLayers::Bf16(layers) => (layers.len(), Compute::Bf16),
        }
    }
}

fn copy_from<E: Element>(layers: &mut [KvLayer<E>], to: u32, others: &[KvLayer<E>], from: u32) {
    for (layer, other) in layers.iter_mut().zip(others) {
        ops::kv_copy_from(layer, to, other, from);
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

/// What a step is to say of one of its rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    /// The row.
    pub row: u32,
    /// The logits after it, or a token drawn by them.
    pub ask: HeadAsk,
}

/// Memory of a step, kept from one to the next. It serves models of either format.
#[derive(Debug, Default)]
pub struct StepScratch {
    stream: Stream,
    f32: Rows<f32>,
    bf16: Rows<Bf16>,
}

/// What is `f32` in both formats.
#[derive(Debug, Default)]
struct Stream {
    x: Buf,
    /// After attention, and where rows are picked.
    mid: Buf,
    rstd: Buf,
}

/// What is in the compute format.
#[derive(Debug, Default)]
struct Rows<E: Element> {
    /// Before the head, and where queries are picked.
    normed: Buf<E>,
    q: Buf<E>,
    k: Buf<E>,
    v: Buf<E>,
    attended: Buf<E>,
    hidden: Buf<E>,
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
    /// An answer is wanted of a row that is not there.
    #[error("an answer for row {row} is wanted, the step has {rows} rows")]
    Wanted {
        /// The row.
        row: u32,
        /// Rows of the step.
        rows: usize,
    },
    /// A critic samples nothing.
    #[error("a critic has no language head to sample from\nhint: only its policy generates")]
    NoLanguageHead,
    /// The cache was made for a model that computes in another format.
    #[error("the cache holds {cache}, the model computes in {model}")]
    Compute {
        /// Format of the cache.
        cache: &'static str,
        /// Format of the model.
        model: &'static str,
    },
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
    /// Computes R rows: writes their keys and values to the cache, attends, and leaves in `answers` one answer for each
    /// of the `wanted` rows: the logits after it, or a token drawn by them, for which none are kept. The bits of a row
    /// depend on its own sequence alone and equal those of [`Model::forward`].
    ///
    /// # Panics
    ///
    /// If `cache` was made for heads of another shape.
    pub fn step(
        &self,
        ctx: &Ctx,
        cache: &mut KvCache,
        rows: &[StepRow<'_>],
        wanted: &[Wanted],
        scratch: &mut StepScratch,
        answers: &mut HeadOutput,
    ) -> Result<(), StepError> {
        self.check_step(cache, rows, wanted)?;
        answers.reset(&[], self.config().vocab_size);
        if rows.is_empty() {
            return Ok(());
        }
        let StepScratch { stream, f32, bf16 } = scratch;
        match (self.packed(ctx), &mut cache.layers) {
            (PackedWeights::F32(packed), KvLayers::F32(cache)) => {
                self.step_in(ctx, packed, cache, rows, wanted, (stream, f32), answers)
            }
            (PackedWeights::Bf16(packed), KvLayers::Bf16(cache)) => {
                self.step_in(ctx, packed, cache, rows, wanted, (stream, bf16), answers)
            }
            _ => {
                Err(StepError::Compute { cache: cache.shape().1.name(), model: self.config().compute.name() })
            }
        }
    }

    fn step_in<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        cache: &mut [KvLayer<E>],
        rows: &[StepRow<'_>],
        wanted: &[Wanted],
        (stream, s): (&mut Stream, &mut Rows<E>),
        answers: &mut HeadOutput,
    ) -> Result<(), StepError> {
        let head = packed.head.as_ref().ok_or(StepError::NoLanguageHead)?;
        let c = self.config();
        let (r, d) = (rows.len(), c.hidden_size);
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.position).collect();
        let slots: Vec<u32> = rows.iter().map(StepRow::slot).collect();
        let mut reach: Vec<CachedRow<'_>> =
            rows.iter().map(|row| CachedRow { blocks: row.blocks, len: row.position as usize + 1 }).collect();
        let furthest = positions.iter().max().map_or(0, |&position| position as usize + 1);
        let table = self.rope().at_least(c, furthest);
        let turn = Turn { positions: &positions, table: &table };
        stream.resize(c, r);
        s.resize(c, r);
        let (wanted, asks): (Vec<u32>, Vec<HeadAsk>) = wanted.iter().map(|w| (w.row, w.ask)).unzip();
        let all_wanted = wanted.iter().copied().eq(0..r as u32);

        ops::embedding(ctx, &mut stream.x, &self.weights().embedding, &tokens, d);
        for (index, kv) in cache.iter_mut().enumerate() {
            let layer = self.layer(packed, index);
            layer.project(ctx, [&mut s.q, &mut s.k, &mut s.v], None, &stream.x, turn);
            ops::kv_write(ctx, kv, &s.k, &s.v, &slots);
            if index + 1 == c.layers && !all_wanted {
                // Of the other rows nobody needs more than the last layer's keys and values.
                if wanted.is_empty() {
                    return Ok(());
                }
                stream.keep(ctx, c, &wanted);
                s.keep(ctx, c, &wanted);
                reach = wanted.iter().map(|&row| reach[row as usize]).collect();
            }
            let Stream { x, mid, .. } = stream;
            ops::attention_cached(ctx, &mut s.attended, &s.q, kv, &reach);
            layer.output(ctx, mid, x, &s.attended, reach.len());
            layer.gate_up(ctx, &mut s.hidden, None, mid, reach.len());
            layer.down(ctx, x, mid, &s.hidden, reach.len());
        }
        let (w, norm, eps) = (wanted.len(), &self.weights().norm, c.rms_norm_eps as f32);
        s.normed.resize(w * d);
        stream.rstd.resize(w);
        ops::rms_norm(ctx, &mut s.normed, &mut stream.rstd, &stream.x, norm, w, d, eps);
        ops::head_draw(ctx, answers, &s.normed, head, &asks);
        Ok(())
    }

    fn check_step(&self, cache: &KvCache, rows: &[StepRow<'_>], wanted: &[Wanted]) -> Result<(), StepError> {
        let c = self.config();
        let layers = cache.shape().0;
        if layers != c.layers {
            return Err(StepError::Cache { cache: layers, model: c.layers });
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
        match wanted.iter().find(|wanted| wanted.row as usize >= rows.len()) {
            Some(wanted) => Err(StepError::Wanted { row: wanted.row, rows: rows.len() }),
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

impl Stream {
    fn resize(&mut self, c: &ModelConfig, r: usize) {
        self.x.resize(r * c.hidden_size);
        self.mid.resize(r * c.hidden_size);
    }

    /// Leaves the stream of these rows only, as it is before attention.
    fn keep(&mut self, ctx: &Ctx, c: &ModelConfig, rows: &[u32]) {
        self.mid.resize(rows.len() * c.hidden_size);
        ops::gather_rows(ctx, &mut self.mid, &self.x, rows, c.hidden_size);
        std::mem::swap(&mut self.x, &mut self.mid);
        self.mid.resize(rows.len() * c.hidden_size);
    }
}

impl<E: Element> Rows<E> {
    fn resize(&mut self, c: &ModelConfig, r: usize) {
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        self.q.resize(r * he);
        self.k.resize(r * ge);
        self.v.resize(r * ge);
        self.attended.resize(r * he);
        self.hidden.resize(r * c.intermediate_size);
    }

    /// Leaves the queries of these rows only, and room for what comes of them.
    fn keep(&mut self, ctx: &Ctx, c: &ModelConfig, rows: &[u32]) {
        let he = c.heads * c.head_dim;
        self.normed.resize(rows.len() * he);
        ops::gather_rows(ctx, &mut self.normed, &self.q, rows, he);
        std::mem::swap(&mut self.q, &mut self.normed);
        self.attended.resize(rows.len() * he);
        self.hidden.resize(rows.len() * c.intermediate_size);
    }
}
