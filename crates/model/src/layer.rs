//! What forward and decode do alike in a layer. Both call the same operations on rows, which is why sampling and
//! training agree to the last bit.

use std::sync::Arc;

use rloom_ops::{self as ops, Buf, Ctx, Element, RopeTable};

use crate::ModelConfig;
use crate::packed::PackedLayer;
use crate::tensors::LayerTensors;

/// A layer with all that is needed to compute it in one of the formats.
#[derive(Clone, Copy)]
pub(crate) struct Layer<'a, E: Element> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a LayerTensors,
    pub(crate) packed: &'a PackedLayer<E>,
}

impl<E: Element> Layer<'_, E> {
    fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    /// Queries `[rows, H, E]`, keys and values `[rows, G, E]` of normalised inputs; not yet normalised per head, not
    /// yet turned.
    pub(crate) fn project(
        &self,
        ctx: &Ctx,
        normed: &Buf<E>,
        rows: usize,
        q: &mut Buf<E>,
        k: &mut Buf<E>,
        v: &mut Buf<E>,
    ) {
        let bias = |i: usize| self.weights.qkv_bias.as_ref().map(|bias| &bias[i]);
        ops::linear(ctx, q, normed, rows, &self.packed.q, bias(0));
        ops::linear(ctx, k, normed, rows, &self.packed.k, bias(1));
        ops::linear(ctx, v, normed, rows, &self.packed.v, bias(2));
    }

    /// RMSNorm of the layer's input.
    pub(crate) fn attention_norm(
        &self,
        ctx: &Ctx,
        normed: &mut Buf<E>,
        rstd: &mut Buf,
        x: &Buf,
        rows: usize,
    ) {
        let d = self.config.hidden_size;
        ops::rms_norm(ctx, normed, rstd, x, &self.weights.attention_norm, rows, d, self.eps());
    }

    /// RMSNorm of what the feed-forward layer reads.
    pub(crate) fn mlp_norm(&self, ctx: &Ctx, normed: &mut Buf<E>, rstd: &mut Buf, mid: &Buf, rows: usize) {
        let d = self.config.hidden_size;
        ops::rms_norm(ctx, normed, rstd, mid, &self.weights.mlp_norm, rows, d, self.eps());
    }

    /// RMSNorm per head of the queries; only for models that have it.
    pub(crate) fn q_norm(
        &self,
        ctx: &Ctx,
        normed: &mut Buf<E>,
        rstd: &mut Buf,
        q: &Buf<E>,
        rows: usize,
        w: &Buf,
    ) {
        let (heads, e) = (self.config.heads, self.config.head_dim);
        ops::rms_norm(ctx, normed, rstd, q, w, rows * heads, e, self.eps());
    }

    /// RMSNorm per head of the keys; only for models that have it.
    pub(crate) fn k_norm(
        &self,
        ctx: &Ctx,
        normed: &mut Buf<E>,
        rstd: &mut Buf,
        k: &Buf<E>,
        rows: usize,
        w: &Buf,
    ) {
        let (heads, e) = (self.config.kv_heads, self.config.head_dim);
        ops::rms_norm(ctx, normed, rstd, k, w, rows * heads, e, self.eps());
    }

    /// Turns queries and keys by their positions.
    pub(crate) fn rope(
        &self,
        ctx: &Ctx,
        q: &mut Buf<E>,
        k: &mut Buf<E>,
        positions: &[u32],
        table: &RopeTable,
    ) {
        ops::rope(ctx, q, positions, self.config.heads, table);
        ops::rope(ctx, k, positions, self.config.kv_heads, table);
    }

    /// The stream after attention: `mid = x + attended · Woᵀ`.
    pub(crate) fn output(&self, ctx: &Ctx, mid: &mut Buf, x: &Buf, attended: &Buf<E>, rows: usize) {
        let bias = self.weights.o_bias.as_ref();
        ops::linear_residual(ctx, mid, x, attended, rows, &self.packed.o, bias);
    }

    /// `hidden = silu(gate) · up` with `gate_up = normed · Wᵀ`, which the backward pass needs.
    pub(crate) fn gate_up(
        &self,
        ctx: &Ctx,
        hidden: &mut Buf<E>,
        gate_up: Option<&mut Buf<E>>,
        normed: &Buf<E>,
        rows: usize,
    ) {
        ops::linear_swiglu(ctx, hidden, gate_up, normed, rows, &self.packed.gate_up);
    }

    /// The layer's result: `next = mid + hidden · Wdᵀ`.
    pub(crate) fn down(&self, ctx: &Ctx, next: &mut Buf, mid: &Buf, hidden: &Buf<E>, rows: usize) {
        ops::linear_residual(ctx, next, mid, hidden, rows, &self.packed.down, None);
    }
}

/// Cosines and sines for as many positions as were needed so far: a model that allows a million positions rarely
/// sees them.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {
    table: std::sync::RwLock<Option<Arc<RopeTable>>>,
}

impl RopeTables {
    /// A table for positions `0..positions` at least.
    pub(crate) fn at_least(&self, config: &ModelConfig, positions: usize) -> Arc<RopeTable> {
        use std::sync::PoisonError;
        let enough = |table: &Option<Arc<RopeTable>>| {
            table.as_ref().filter(|table| table.max_positions() >= positions).map(Arc::clone)
        };
        if let Some(table) = enough(&self.table.read().unwrap_or_else(PoisonError::into_inner)) {
            return table;
        }
        let mut slot = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = enough(&slot) {
            return table;
        }
        let room = positions.next_power_of_two().max(256).min(config.max_positions.max(positions));
        let table = Arc::new(RopeTable::new(config.head_dim, &config.inverse_frequencies(), room));
        *slot = Some(Arc::clone(&table));
        table
    }
}
