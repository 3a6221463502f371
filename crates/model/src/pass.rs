//! One layer over a packed batch: computed in the forward pass, and in the backward pass if it was not saved.

use std::sync::Arc;

use rloom_ops::{self as ops, Buf, Ctx, Element, RopeTable, Rotation, Segments};

use crate::Model;
use crate::buf_pool::PooledBuf;
use crate::dropout::LoraDropout;
use crate::layer::Layer;
use crate::packed::PackedModel;

/// State shared by all layers over one batch.
pub(crate) struct Pass<'a, E: Element> {
    pub(crate) model: &'a Model,
    pub(crate) ctx: &'a Ctx,
    pub(crate) packed: PackedModel<'a, E>,
    /// Position of each token, `[T]`.
    pub(crate) positions: &'a [u32],
    pub(crate) segments: Segments<'a>,
    /// Dropout of the adapter's inputs.
    pub(crate) dropout: Option<&'a LoraDropout>,
    table: Arc<RopeTable>,
}

/// Activations of the attention for the backward pass.
#[derive(Debug)]
pub(crate) struct AttentionActivations<E: Element> {
    /// Queries, `[T, H, E]`, and keys, `[T, G, E]`: rotated, or before QK-norm if the model has it.
    pub(crate) q: PooledBuf<E>,
    pub(crate) k: PooledBuf<E>,
    /// `[T, G, E]`
    pub(crate) v: PooledBuf<E>,
    /// `[T, H, E]`
    pub(crate) attended: PooledBuf<E>,
    /// `[T, H]`
    pub(crate) lse: PooledBuf,
}

/// Activations of the feed-forward layer for the backward pass.
#[derive(Debug)]
pub(crate) struct MlpActivations<E: Element> {
    /// Residual stream after attention, `[T, D]`.
    pub(crate) mid: PooledBuf,
    /// `[T, 2F]`
    pub(crate) gate_up: PooledBuf<E>,
}

/// Queries and keys after QK-norm and rotation, with the norms' scales: `[T, H]` and `[T, G]`.
pub(crate) struct RotatedHeads<E: Element> {
    pub(crate) q: PooledBuf<E>,
    pub(crate) k: PooledBuf<E>,
    pub(crate) q_rstd: PooledBuf,
    pub(crate) k_rstd: PooledBuf,
}

impl<'a, E: Element> Pass<'a, E> {
    pub(crate) fn new(
        model: &'a Model,
        ctx: &'a Ctx,
        packed: PackedModel<'a, E>,
        positions: &'a [u32],
        segments: Segments<'a>,
        dropout: Option<&'a LoraDropout>,
    ) -> Self {
        let reach = positions.iter().max().map_or(0, |&last| last as usize + 1);
        let table = model.rope().at_least(model.config(), reach);
        Self { model, ctx, packed, positions, segments, dropout, table }
    }

    /// Number of tokens, T.
    pub(crate) fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// A buffer for all tokens, `[T, width]`, with unspecified content.
    pub(crate) fn take<F: Element>(&self, width: usize) -> PooledBuf<F> {
        self.model.buf_pool().take(self.tokens(), width)
    }

    pub(crate) fn layer(&self, index: usize) -> Layer<'a, E> {
        Layer { dropout: self.dropout, ..self.model.layer(self.packed, index) }
    }

    /// RMSNorm of the layer's input, `[T, D]`, and its scales, `[T]`.
    pub(crate) fn attention_norm(&self, layer: Layer<'_, E>, x: &Buf) -> (PooledBuf<E>, PooledBuf) {
        let (mut normed, mut rstd) = (self.take(layer.config.hidden_size), self.take(1));
        layer.attention_norm(self.ctx, &mut normed, &mut rstd, x, self.tokens());
        (normed, rstd)
    }

    /// As [`attention_norm`](Self::attention_norm), of the feed-forward layer's input.
    pub(crate) fn mlp_norm(&self, layer: Layer<'_, E>, mid: &Buf) -> (PooledBuf<E>, PooledBuf) {
        let (mut normed, mut rstd) = (self.take(layer.config.hidden_size), self.take(1));
        layer.mlp_norm(self.ctx, &mut normed, &mut rstd, mid, self.tokens());
        (normed, rstd)
    }

    /// Attention over the layer's input.
    pub(crate) fn attend(&self, layer: Layer<'_, E>, x: &Buf) -> AttentionActivations<E> {
        let (ctx, c) = (self.ctx, layer.config);
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let (mut q, mut k, mut v) = (self.take(he), self.take(ge), self.take(ge));
        let mut raw = layer.weights.qk_norm.is_some().then(|| [self.take(he), self.take(ge)]);
        let to_raw = raw.as_mut().map(|raw| raw.each_mut().map(|buf| &mut **buf));
        layer.project(ctx, [&mut q, &mut k, &mut v], to_raw, x, self.rotation());
        let (mut attended, mut lse) = (self.take(he), self.take(c.heads));
        let shape = layer.attention_shape();
        ops::attention(ctx, &mut attended, &mut lse, &q, &k, &v, shape, self.segments);
        let [q, k] = raw.unwrap_or([q, k]);
        AttentionActivations { q, k, v, attended, lse }
    }

    /// QK-norm and rotation of queries and keys; `None` for models without QK-norm.
    pub(crate) fn normed_and_rotated(
        &self,
        layer: Layer<'_, E>,
        q: &Buf<E>,
        k: &Buf<E>,
    ) -> Option<RotatedHeads<E>> {
        layer.weights.qk_norm.as_ref()?;
        let c = layer.config;
        let mut rotated = RotatedHeads {
            q: self.take(c.heads * c.head_dim),
            k: self.take(c.kv_heads * c.head_dim),
            q_rstd: self.take(c.heads),
            k_rstd: self.take(c.kv_heads),
        };
        let to = [&mut *rotated.q, &mut *rotated.k];
        let rstd = [&mut *rotated.q_rstd, &mut *rotated.k_rstd];
        ops::heads_norm(self.ctx, to, rstd, [q, k], layer.heads(self.rotation()));
        Some(rotated)
    }

    /// Residual stream after attention, `[T, D]`.
    pub(crate) fn mid(&self, layer: Layer<'_, E>, x: &Buf, attended: &Buf<E>) -> PooledBuf {
        let mut mid = self.take(layer.config.hidden_size);
        layer.output(self.ctx, &mut mid, x, attended, self.tokens());
        mid
    }

    /// SwiGLU's product, `[T, F]`; stores its factors in `gate_up` if given.
    pub(crate) fn hidden(
        &self,
        layer: Layer<'_, E>,
        mid: &Buf,
        gate_up: Option<&mut Buf<E>>,
    ) -> PooledBuf<E> {
        let mut hidden = self.take(layer.config.intermediate_size);
        layer.gate_up(self.ctx, &mut hidden, gate_up, mid, self.tokens());
        hidden
    }

    /// A buffer for [`MlpActivations::gate_up`].
    pub(crate) fn take_gate_up(&self, layer: Layer<'_, E>) -> PooledBuf<E> {
        self.take(2 * layer.config.intermediate_size)
    }

    /// Rotation of queries and keys.
    pub(crate) fn rotation(&self) -> Rotation<'_> {
        Rotation { positions: self.positions, table: &self.table }
    }
}
