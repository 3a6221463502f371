//! Decoding: one step over rows of many sequences, prompts and single tokens mixed, with a key/value cache.

use rloom_ops::{
    self as ops, Bf16, Buf, CachedRow, Ctx, Element, HeadOutput, HeadRequest, KV_BLOCK, KvLayer, Rotation,
};

use crate::model::attention_shape;
use crate::packed::{PackedForm, PackedModel};
use crate::{Dtype, Model, ModelConfig};

/// Keys and values of all layers, in blocks of [`KV_BLOCK`] tokens. The caller tracks which sequence owns which block.
#[derive(Debug)]
pub struct KvCache {
    layers: KvLayers,
    blocks: usize,
}

/// Layers in the dtype of the model.
#[derive(Debug)]
enum KvLayers {
    F32(Vec<KvLayer<f32>>),
    Bf16(Vec<KvLayer<Bf16>>),
}

impl KvCache {
    /// A cache of `blocks` blocks for models of this shape and dtype.
    pub fn new(config: &ModelConfig, blocks: usize) -> Self {
        fn layers<E: Element>(config: &ModelConfig, blocks: usize) -> Vec<KvLayer<E>> {
            (0..config.layers).map(|layer| KvLayer::new(blocks, attention_shape(config, layer))).collect()
        }
        let layers = match config.dtype {
            Dtype::F32 => KvLayers::F32(layers(config, blocks)),
            Dtype::Bf16 => KvLayers::Bf16(layers(config, blocks)),
        };
        Self { layers, blocks }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Size of one block over all layers, in bytes.
    pub fn bytes_per_block(&self) -> usize {
        let bytes: usize = match &self.layers {
            KvLayers::F32(layers) => layers.iter().map(KvLayer::bytes).sum(),
            KvLayers::Bf16(layers) => layers.iter().map(KvLayer::bytes).sum(),
        };
        bytes / self.blocks.max(1)
    }

    /// Copies a block in all layers, for a sequence that diverges from others that share it.
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

    /// Copies a block from another cache in all layers, for a sequence that moves to this one.
    ///
    /// # Panics
    ///
    /// If the other cache is for models of another shape or dtype, or there is no such block.
    pub fn copy_from(&mut self, to: u32, other: &Self, from: u32) {
        assert_eq!(self.shape(), other.shape(), "the caches have different layers or dtypes");
        match (&mut self.layers, &other.layers) {
            (KvLayers::F32(layers), KvLayers::F32(others)) => copy_from(layers, to, others, from),
            (KvLayers::Bf16(layers), KvLayers::Bf16(others)) => copy_from(layers, to, others, from),
            (KvLayers::F32(_), KvLayers::Bf16(_)) | (KvLayers::Bf16(_), KvLayers::F32(_)) => {}
        }
    }

    /// Number of layers, and their dtype.
    fn shape(&self) -> (usize, Dtype) {
        match &self.layers {
            KvLayers::F32(layers) => (layers.len(), Dtype::F32),
            KvLayers::Bf16(layers) => (layers.len(), Dtype::Bf16),
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
    /// Token id.
    pub token: u32,
    /// Position in its sequence. All earlier positions must be in the cache or be rows of the same step.
    pub position: u32,
    /// Blocks of the sequence, in order; block `position / KV_BLOCK` must not be written by another sequence.
    pub blocks: &'a [u32],
}

/// Request for the output of one row of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowRequest {
    /// Index of the row.
    pub row: u32,
    /// Requested output: the logits after the row, or a token drawn from them.
    pub request: HeadRequest,
}

/// Scratch memory of steps, reused from one to the next and shared by models of both dtypes.
#[derive(Debug, Default)]
pub struct StepScratch {
    stream: Stream,
    f32: Rows<f32>,
    bf16: Rows<Bf16>,
}

/// Buffers that are `f32` in both dtypes.
#[derive(Debug, Default)]
struct Stream {
    x: Buf,
    /// After attention; also used to select rows.
    mid: Buf,
    rstd: Buf,
}

/// Buffers in the dtype of the model.
#[derive(Debug, Default)]
struct Rows<E: Element> {
    /// Input of the head; also used to select queries.
    normed: Buf<E>,
    q: Buf<E>,
    k: Buf<E>,
    v: Buf<E>,
    attended: Buf<E>,
    hidden: Buf<E>,
}

/// An invalid step.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A token is not in the vocabulary.
    #[error("token {token} (row {row}) is outside the vocabulary of {vocab_size}")]
    #[diagnostic(help("the tokenizer does not match the model"))]
    Token {
        /// The token.
        token: u32,
        /// Its row.
        row: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A position exceeds the model's context.
    #[error("position {position} (row {row}) exceeds the {max} positions of the model")]
    Position {
        /// The position.
        position: u32,
        /// Its row.
        row: usize,
        /// Maximum number of positions.
        max: usize,
    },
    /// A row's blocks do not include its position, or are not in the cache.
    #[error(
        "row {row}: its {blocks} blocks do not hold position {position} of a cache of {cache_blocks} blocks"
    )]
    Blocks {
        /// The row.
        row: usize,
        /// Number of blocks of the row.
        blocks: usize,
        /// Its position.
        position: u32,
        /// Number of blocks of the cache.
        cache_blocks: usize,
    },
    /// A requested row does not exist.
    #[error("row {row} is requested, but the step has {rows} rows")]
    RowRequest {
        /// The row.
        row: u32,
        /// Number of rows of the step.
        rows: usize,
    },
    /// A critic has no language head to sample from.
    #[error("a critic has no language head to sample from")]
    #[diagnostic(help("only its policy generates"))]
    NoLanguageHead,
    /// The cache was created for a model of another dtype.
    #[error("the cache holds {cache}, the model computes in {model}")]
    Dtype {
        /// Dtype of the cache.
        cache: &'static str,
        /// Dtype of the model.
        model: &'static str,
    },
    /// The cache was created for a model of another shape.
    #[error("the cache has {cache} layers, the model {model}")]
    Cache {
        /// Layers of the cache.
        cache: usize,
        /// Layers of the model.
        model: usize,
    },
}

impl Model {
    /// Computes R rows: writes their keys and values to the cache, attends, and stores one result per request in
    /// `results`: the logits after the row, or a token drawn from them without storing logits. A row's bits depend on
    /// its own sequence alone and are identical to those of [`Model::forward`].
    ///
    /// # Panics
    ///
    /// If `cache` was created for heads of another shape.
    pub fn step(
        &self,
        ctx: &Ctx,
        cache: &mut KvCache,
        rows: &[StepRow<'_>],
        requests: &[RowRequest],
        scratch: &mut StepScratch,
        results: &mut HeadOutput,
    ) -> Result<(), StepError> {
        self.check_step(cache, rows, requests)?;
        results.reset(&[], self.config().vocab_size);
        if rows.is_empty() {
            return Ok(());
        }
        let StepScratch { stream, f32, bf16 } = scratch;
        match (self.packed(ctx), &mut cache.layers) {
            (PackedForm::F32(packed), KvLayers::F32(cache)) => {
                self.step_in(ctx, packed, cache, rows, requests, (stream, f32), results)
            }
            (PackedForm::Bf16(packed), KvLayers::Bf16(cache)) => {
                self.step_in(ctx, packed, cache, rows, requests, (stream, bf16), results)
            }
            _ => Err(StepError::Dtype { cache: cache.shape().1.name(), model: self.config().dtype.name() }),
        }
    }

    fn step_in<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        cache: &mut [KvLayer<E>],
        rows: &[StepRow<'_>],
        requests: &[RowRequest],
        (stream, s): (&mut Stream, &mut Rows<E>),
        results: &mut HeadOutput,
    ) -> Result<(), StepError> {
        let head = packed.head().ok_or(StepError::NoLanguageHead)?;
        let c = self.config();
        let (r, d) = (rows.len(), c.hidden_size);
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.position).collect();
        let slots: Vec<u32> = rows.iter().map(StepRow::slot).collect();
        let mut reach: Vec<CachedRow<'_>> =
            rows.iter().map(|row| CachedRow { blocks: row.blocks, len: row.position as usize + 1 }).collect();
        let positions_needed = positions.iter().max().map_or(0, |&position| position as usize + 1);
        let table = self.rope().at_least(c, positions_needed);
        let rotation = Rotation { positions: &positions, table: &table };
        stream.resize(c, r);
        s.resize(c, r);
        let (requested, head_requests): (Vec<u32>, Vec<HeadRequest>) =
            requests.iter().map(|request| (request.row, request.request)).unzip();
        let all_requested = requested.iter().copied().eq(0..r as u32);

        ops::embedding(ctx, &mut stream.x, self.base().embedding(), &tokens, d);
        for (index, kv) in cache.iter_mut().enumerate() {
            let layer = self.layer(packed, index);
            layer.project(ctx, [&mut s.q, &mut s.k, &mut s.v], None, &stream.x, rotation);
            ops::kv_write(ctx, kv, &s.k, &s.v, &slots);
            if index + 1 == c.layers && !all_requested {
                // The last layer of all other rows is needed for its keys and values only.
                if requested.is_empty() {
                    return Ok(());
                }
                stream.keep(ctx, c, &requested);
                s.keep(ctx, c, &requested);
                reach = requested.iter().map(|&row| reach[row as usize]).collect();
            }
            let Stream { x, mid, .. } = stream;
            ops::attention_cached(ctx, &mut s.attended, &s.q, kv, &reach);
            layer.output(ctx, mid, x, &s.attended, reach.len());
            layer.gate_up(ctx, &mut s.hidden, None, mid, reach.len());
            layer.down(ctx, x, mid, &s.hidden, reach.len());
        }
        let (w, norm, eps) = (requested.len(), &self.weights().norm, c.rms_norm_eps as f32);
        s.normed.resize(w * d);
        stream.rstd.resize(w);
        ops::rms_norm(ctx, &mut s.normed, &mut stream.rstd, &stream.x, norm, w, d, eps);
        ops::head_draw(ctx, results, &s.normed, head, &head_requests);
        Ok(())
    }

    fn check_step(
        &self,
        cache: &KvCache,
        rows: &[StepRow<'_>],
        requests: &[RowRequest],
    ) -> Result<(), StepError> {
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
        match requests.iter().find(|request| request.row as usize >= rows.len()) {
            Some(request) => Err(StepError::RowRequest { row: request.row, rows: rows.len() }),
            None => Ok(()),
        }
    }
}

impl StepRow<'_> {
    /// Cache slot of its key and value.
    fn slot(&self) -> u32 {
        let position = self.position as usize;
        self.blocks[position / KV_BLOCK] * KV_BLOCK as u32 + (position % KV_BLOCK) as u32
    }
}

impl StepScratch {
    /// Size of the buffers, in bytes.
    pub fn bytes(&self) -> usize {
        let Stream { x, mid, rstd } = &self.stream;
        let stream = [x, mid, rstd].map(Buf::capacity_bytes).iter().sum::<usize>();
        stream + self.f32.bytes() + self.bf16.bytes()
    }
}

impl Stream {
    fn resize(&mut self, c: &ModelConfig, r: usize) {
        self.x.resize(r * c.hidden_size);
        self.mid.resize(r * c.hidden_size);
    }

    /// Selects rows of the residual stream before attention.
    fn keep(&mut self, ctx: &Ctx, c: &ModelConfig, rows: &[u32]) {
        self.mid.resize(rows.len() * c.hidden_size);
        ops::gather_rows(ctx, &mut self.mid, &self.x, rows, c.hidden_size);
        std::mem::swap(&mut self.x, &mut self.mid);
        self.mid.resize(rows.len() * c.hidden_size);
    }
}

impl<E: Element> Rows<E> {
    fn bytes(&self) -> usize {
        let Self { normed, q, k, v, attended, hidden } = self;
        [normed, q, k, v, attended, hidden].map(Buf::capacity_bytes).iter().sum()
    }

    fn resize(&mut self, c: &ModelConfig, r: usize) {
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        self.q.resize(r * he);
        self.k.resize(r * ge);
        self.v.resize(r * ge);
        self.attended.resize(r * he);
        self.hidden.resize(r * c.intermediate_size);
    }

    /// Selects the queries of these rows, and resizes the buffers that depend on them.
    fn keep(&mut self, ctx: &Ctx, c: &ModelConfig, rows: &[u32]) {
        let he = c.heads * c.head_dim;
        self.normed.resize(rows.len() * he);
        ops::gather_rows(ctx, &mut self.normed, &self.q, rows, he);
        std::mem::swap(&mut self.q, &mut self.normed);
        self.attended.resize(rows.len() * he);
        self.hidden.resize(rows.len() * c.intermediate_size);
    }
}
