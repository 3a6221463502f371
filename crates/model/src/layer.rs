//! Operations of a layer that forward and decode share. Both call the same row operations, so sampling and training are
//! bitwise identical.

use std::sync::Arc;

use rloom_ops::{
    self as ops, AttentionShape, Buf, Ctx, Dropout, Element, HeadNorms, Heads, LowRank, Matrix, Norm, Packed,
    RopeTable, Rotation, Weight,
};

use crate::ModelConfig;
use crate::adapter::{AdapterLayer, Factors, PackedFactors, PackedLayerFactors, Projection};
use crate::dropout::LoraDropout;
use crate::model::attention_shape;
use crate::packed::PackedLayer;
use crate::tensors::LayerTensors;

/// A layer and its weights in one of the formats.
#[derive(Clone, Copy)]
pub(crate) struct Layer<'a, E: Element> {
    pub(crate) config: &'a ModelConfig,
    /// Its vectors; matrices may be in packed form alone ([`Layer::matrix`]).
    pub(crate) weights: &'a LayerTensors,
    pub(crate) packed: &'a PackedLayer<E>,
    pub(crate) index: usize,
    pub(crate) adapter: Option<(&'a AdapterLayer, &'a PackedLayerFactors<E>)>,
    /// Dropout of the adapter's inputs, in training.
    pub(crate) dropout: Option<&'a LoraDropout>,
}

impl<'a, E: Element> Layer<'a, E> {
    /// The weight of a product in rows. That of a frozen base is unpacked into `room`.
    pub(crate) fn matrix<'b>(&self, ctx: &Ctx, projection: Projection, room: &'b mut Buf<E>) -> Matrix<'b>
    where
        'a: 'b,
    {
        let rows = self.weights.matrix(projection);
        if !rows.is_empty() {
            return rows.into();
        }
        ops::unpack(ctx, room, self.packed.of(projection));
        (&*room).into()
    }

    /// The adapter's factors for a product, and their packed form.
    pub(crate) fn factors(&self, projection: Projection) -> Option<(&'a Factors, &'a PackedFactors<E>)> {
        let (layer, packed) = self.adapter?;
        layer.of(projection).zip(packed.of(projection))
    }

    /// The packed weight of a product with the adapter's addition.
    fn weight(&self, projection: Projection, packed: &'a Packed<E>) -> Weight<'a, E> {
        let dropout = self.dropout(projection);
        let low_rank = self.factors(projection).map(|(_, packed)| LowRank { dropout, ..packed.low_rank() });
        Weight { packed, low_rank }
    }

    /// Mask of the input of a product's addition.
    pub(crate) fn dropout(&self, projection: Projection) -> Option<Dropout<'a>> {
        let product = self.index * Projection::ALL.len() + projection as usize;
        self.dropout.map(|dropout| dropout.of(product as u64))
    }

    fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    /// Computes queries `[rows, H, E]`, keys and values `[rows, G, E]` from the layer's input. With QK-norm, `raw`
    /// receives queries and keys before it, if given.
    pub(crate) fn project(
        &self,
        ctx: &Ctx,
        qkv: [&mut Buf<E>; 3],
        raw: Option<[&mut Buf<E>; 2]>,
        x: &Buf,
        rotation: Rotation<'_>,
    ) {
        let (norm, bias) = (self.norm(&self.weights.attention_norm), self.weights.qkv_bias.as_ref());
        let weight = self.weight(Projection::Qkv, &self.packed.qkv);
        ops::linear_heads(ctx, qkv, raw, x, norm, weight, bias, self.heads(rotation));
    }

    /// Processing of the projection's rows.
    pub(crate) fn heads<'b>(&'b self, rotation: Rotation<'b>) -> Heads<'b> {
        let norms = self.weights.qk_norm.as_ref();
        let norms = norms.map(|weights| HeadNorms { weights: weights.each_ref(), eps: self.eps() });
        Heads { shape: self.attention_shape(), rotation, norms }
    }

    /// Heads and window.
    pub(crate) fn attention_shape(&self) -> AttentionShape {
        attention_shape(self.config, self.index)
    }

    fn norm<'b>(&self, weight: &'b Buf) -> Norm<'b> {
        Norm { weight, eps: self.eps() }
    }

    /// Recomputes the RMSNorm of the layer's input.
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

    /// Recomputes the RMSNorm of the feed-forward layer's input.
    pub(crate) fn mlp_norm(&self, ctx: &Ctx, normed: &mut Buf<E>, rstd: &mut Buf, mid: &Buf, rows: usize) {
        let d = self.config.hidden_size;
        ops::rms_norm(ctx, normed, rstd, mid, &self.weights.mlp_norm, rows, d, self.eps());
    }

    /// Residual stream after attention: `mid = x + attended · Woᵀ`.
    pub(crate) fn output(&self, ctx: &Ctx, mid: &mut Buf, x: &Buf, attended: &Buf<E>, rows: usize) {
        let bias = self.weights.o_bias.as_ref();
        let weight = self.weight(Projection::Output, &self.packed.o);
        ops::linear_residual(ctx, mid, x, attended, rows, weight, bias);
    }

    /// `hidden = silu(gate) · up` with `gate_up = rms_norm(mid) · Wᵀ`, which the backward pass needs.
    pub(crate) fn gate_up(
        &self,
        ctx: &Ctx,
        hidden: &mut Buf<E>,
        gate_up: Option<&mut Buf<E>>,
        mid: &Buf,
        rows: usize,
    ) {
        let norm = self.norm(&self.weights.mlp_norm);
        let weight = self.weight(Projection::GateUp, &self.packed.gate_up);
        ops::linear_swiglu(ctx, hidden, gate_up, mid, norm, rows, weight);
    }

    /// The layer's output: `next = mid + hidden · Wdᵀ`.
    pub(crate) fn down(&self, ctx: &Ctx, next: &mut Buf, mid: &Buf, hidden: &Buf<E>, rows: usize) {
        let weight = self.weight(Projection::Down, &self.packed.down);
        ops::linear_residual(ctx, next, mid, hidden, rows, weight, None);
    }
}

/// Positions of the table that is made for sequences of `longest` tokens.
pub(crate) fn rope_positions(config: &ModelConfig, longest: usize) -> usize {
    longest.next_power_of_two().max(256).min(config.max_positions.max(longest))
}

/// Cosines and sines for the largest position used so far: models that allow a million positions rarely use them.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {
    table: std::sync::RwLock<Option<Arc<RopeTable>>>,
}

impl RopeTables {
    /// A table of at least the positions `0..positions`.
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
        let room = rope_positions(config, positions);
        let table = Arc::new(RopeTable::new(
            config.head_dim,
            &config.inverse_frequencies(),
            config.rotary_scale(),
            room,
        ));
        *slot = Some(Arc::clone(&table));
        table
    }
}
