//! One layer over a packed batch: what the forward pass computes, and the backward pass computes again where it was not
//! kept.

use std::sync::Arc;

use rloom_ops::{self as ops, Buf, Ctx, Element, RopeTable, Segments, Turn};

use crate::Model;
use crate::layer::Layer;
use crate::packed::PackedSet;
use crate::workspace::Lent;

/// What all layers share over one batch.
pub(crate) struct Pass<'a, E: Element> {
    pub(crate) model: &'a Model,
    pub(crate) ctx: &'a Ctx,
    pub(crate) packed: &'a PackedSet<E>,
    /// Each token's, `[T]`.
    pub(crate) positions: &'a [u32],
    pub(crate) segments: Segments<'a>,
    table: Arc<RopeTable>,
}

/// What the backward pass needs of the attention.
#[derive(Debug)]
pub(crate) struct AttentionActivations<E: Element> {
    /// Queries, `[T, H, E]`, and keys, `[T, G, E]`: turned by their positions, or before their norm where there is one.
    pub(crate) q: Lent<E>,
    pub(crate) k: Lent<E>,
    /// `[T, G, E]`
    pub(crate) v: Lent<E>,
    /// `[T, H, E]`
    pub(crate) attended: Lent<E>,
    /// `[T, H]`
    pub(crate) lse: Lent,
}

/// What the backward pass needs of the feed-forward layer.
#[derive(Debug)]
pub(crate) struct MlpActivations<E: Element> {
    /// The stream after attention, `[T, D]`.
    pub(crate) mid: Lent,
    /// `[T, 2F]`
    pub(crate) gate_up: Lent<E>,
}

/// Queries and keys as attention reads them, with what a norm per head divides by: `[T, H]` and `[T, G]`.
pub(crate) struct Turned<E: Element> {
    pub(crate) q: Lent<E>,
    pub(crate) k: Lent<E>,
    pub(crate) q_rstd: Lent,
    pub(crate) k_rstd: Lent,
}

impl<'a, E: Element> Pass<'a, E> {
    pub(crate) fn new(
        model: &'a Model,
        ctx: &'a Ctx,
        packed: &'a PackedSet<E>,
        positions: &'a [u32],
        segments: Segments<'a>,
    ) -> Self {
        let reach = positions.iter().max().map_or(0, |&last| last as usize + 1);
        let table = model.rope().at_least(model.config(), reach);
        Self { model, ctx, packed, positions, segments, table }
    }

    /// T.
    pub(crate) fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// Memory for every token, `[T, width]`, with unspecified content.
    pub(crate) fn lend<F: Element>(&self, width: usize) -> Lent<F> {
        self.model.workspace().lend(self.tokens(), width)
    }

    pub(crate) fn layer(&self, index: usize) -> Layer<'a, E> {
        self.model.layer(self.packed, index)
    }

    /// RMSNorm of the layer's input, `[T, D]`, and what it divided by, `[T]`.
    pub(crate) fn attention_norm(&self, layer: Layer<'_, E>, x: &Buf) -> (Lent<E>, Lent) {
        let (mut normed, mut rstd) = (self.lend(layer.config.hidden_size), self.lend(1));
        layer.attention_norm(self.ctx, &mut normed, &mut rstd, x, self.tokens());
        (normed, rstd)
    }

    /// As [`attention_norm`](Self::attention_norm), of what the feed-forward layer reads.
    pub(crate) fn mlp_norm(&self, layer: Layer<'_, E>, mid: &Buf) -> (Lent<E>, Lent) {
        let (mut normed, mut rstd) = (self.lend(layer.config.hidden_size), self.lend(1));
        layer.mlp_norm(self.ctx, &mut normed, &mut rstd, mid, self.tokens());
        (normed, rstd)
    }

    /// The attention over the layer's input.
    pub(crate) fn attend(&self, layer: Layer<'_, E>, x: &Buf) -> AttentionActivations<E> {
        let (ctx, c) = (self.ctx, layer.config);
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let (mut q, mut k, mut v) = (self.lend(he), self.lend(ge), self.lend(ge));
        let mut raw = layer.weights.qk_norm.is_some().then(|| [self.lend(he), self.lend(ge)]);
        let to_raw = raw.as_mut().map(|raw| raw.each_mut().map(|buf| &mut **buf));
        layer.project(ctx, [&mut q, &mut k, &mut v], to_raw, x, self.turn());
        let (mut attended, mut lse) = (self.lend(he), self.lend(c.heads));
        let shape = self.model.attention_shape();
        ops::attention(ctx, &mut attended, &mut lse, &q, &k, &v, shape, self.segments);
        let [q, k] = raw.unwrap_or([q, k]);
        AttentionActivations { q, k, v, attended, lse }
    }

    /// For models that normalise queries and keys per head: both afterwards, turned by their positions.
    pub(crate) fn normed_and_turned(&self, layer: Layer<'_, E>, q: &Buf<E>, k: &Buf<E>) -> Option<Turned<E>> {
        layer.weights.qk_norm.as_ref()?;
        let c = layer.config;
        let mut turned = Turned {
            q: self.lend(c.heads * c.head_dim),
            k: self.lend(c.kv_heads * c.head_dim),
            q_rstd: self.lend(c.heads),
            k_rstd: self.lend(c.kv_heads),
        };
        let to = [&mut *turned.q, &mut *turned.k];
        let rstd = [&mut *turned.q_rstd, &mut *turned.k_rstd];
        ops::heads_norm(self.ctx, to, rstd, [q, k], layer.heads(self.turn()));
        Some(turned)
    }

    /// The stream after attention, `[T, D]`.
    pub(crate) fn mid(&self, layer: Layer<'_, E>, x: &Buf, attended: &Buf<E>) -> Lent {
        let mut mid = self.lend(layer.config.hidden_size);
        layer.output(self.ctx, &mut mid, x, attended, self.tokens());
        mid
    }

    /// SwiGLU's product, `[T, F]`, and its factors where there is a place for them.
    pub(crate) fn hidden(&self, layer: Layer<'_, E>, mid: &Buf, gate_up: Option<&mut Buf<E>>) -> Lent<E> {
        let mut hidden = self.lend(layer.config.intermediate_size);
        layer.gate_up(self.ctx, &mut hidden, gate_up, mid, self.tokens());
        hidden
    }

    /// Memory for [`MlpActivations::gate_up`].
    pub(crate) fn lend_gate_up(&self, layer: Layer<'_, E>) -> Lent<E> {
        self.lend(2 * layer.config.intermediate_size)
    }

    /// By which queries and keys turn.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn { positions: self.positions, table: &self.table }
    }
}
