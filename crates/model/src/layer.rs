//! What forward and decode do alike in a layer. Both call the same operations on rows, which is why sampling and
//! training agree to the last bit.

use std::sync::Arc;

use rloom_ops::{self as ops, Buf, Ctx, Packed, RopeTable};

use crate::ModelConfig;
use crate::tensors::{LayerTensors, TensorSet};

/// The matrices of one layer in the form that the kernels read.
#[derive(Debug)]
pub(crate) struct PackedLayer {
    pub(crate) q: Packed,
    pub(crate) k: Packed,
    pub(crate) v: Packed,
    pub(crate) o: Packed,
    pub(crate) gate_up: Packed,
    pub(crate) down: Packed,
}

/// All matrices of a model in the form that the kernels read.
#[derive(Debug)]
pub(crate) struct PackedSet {
    pub(crate) layers: Vec<PackedLayer>,
    /// The language head; `None` in a critic.
    pub(crate) head: Option<Packed>,
    /// The value head, where there is one.
    pub(crate) value: Option<Packed>,
}

impl PackedSet {
    pub(crate) fn new(ctx: &Ctx, weights: &TensorSet, c: &ModelConfig) -> Self {
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let layer = |layer: &LayerTensors| PackedLayer {
            q: ops::pack(ctx, &layer.q, he, d),
            k: ops::pack(ctx, &layer.k, ge, d),
            v: ops::pack(ctx, &layer.v, ge, d),
            o: ops::pack(ctx, &layer.o, d, he),
            gate_up: ops::pack(ctx, &layer.gate_up, 2 * f, d),
            down: ops::pack(ctx, &layer.down, d, f),
        };
        let heads = c.output_heads;
        Self {
            layers: weights.layers.iter().map(layer).collect(),
            head: heads.language().then(|| ops::pack(ctx, weights.head_table(), c.vocab_size, d)),
            value: weights.value.as_ref().map(|[weight, _]| ops::pack(ctx, weight, 1, d)),
        }
    }

    /// The forms of other weights of the same shape, in the same memory.
    pub(crate) fn renew(&mut self, ctx: &Ctx, weights: &TensorSet) {
        for (packed, layer) in self.layers.iter_mut().zip(&weights.layers) {
            ops::repack(ctx, &mut packed.q, &layer.q);
            ops::repack(ctx, &mut packed.k, &layer.k);
            ops::repack(ctx, &mut packed.v, &layer.v);
            ops::repack(ctx, &mut packed.o, &layer.o);
            ops::repack(ctx, &mut packed.gate_up, &layer.gate_up);
            ops::repack(ctx, &mut packed.down, &layer.down);
        }
        if let Some(head) = &mut self.head {
            ops::repack(ctx, head, weights.head_table());
        }
        if let Some((packed, [weight, _])) = self.value.as_mut().zip(weights.value.as_ref()) {
            ops::repack(ctx, packed, weight);
        }
    }
}

/// A layer with all that is needed to compute it.
#[derive(Clone, Copy)]
pub(crate) struct Layer<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a LayerTensors,
    pub(crate) packed: &'a PackedLayer,
}

impl Layer<'_> {
    fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    /// Queries `[rows, H, E]`, keys and values `[rows, G, E]` of normalised inputs; not yet normalised per head, not
    /// yet turned.
    pub(crate) fn project(
        &self,
        ctx: &Ctx,
        normed: &Buf,
        rows: usize,
        q: &mut Buf,
        k: &mut Buf,
        v: &mut Buf,
    ) {
        let bias = |i: usize| self.weights.qkv_bias.as_ref().map(|bias| &bias[i]);
        ops::linear(ctx, q, normed, rows, &self.packed.q, bias(0));
        ops::linear(ctx, k, normed, rows, &self.packed.k, bias(1));
        ops::linear(ctx, v, normed, rows, &self.packed.v, bias(2));
    }

    /// RMSNorm of the layer's input.
    pub(crate) fn attention_norm(&self, ctx: &Ctx, normed: &mut Buf, rstd: &mut Buf, x: &Buf, rows: usize) {
        let d = self.config.hidden_size;
        ops::rms_norm(ctx, normed, rstd, x, &self.weights.attention_norm, rows, d, self.eps());
    }

    /// RMSNorm of what the feed-forward layer reads.
    pub(crate) fn mlp_norm(&self, ctx: &Ctx, normed: &mut Buf, rstd: &mut Buf, x: &Buf, rows: usize) {
        let d = self.config.hidden_size;
        ops::rms_norm(ctx, normed, rstd, x, &self.weights.mlp_norm, rows, d, self.eps());
    }

    /// RMSNorm per head of the queries; only for models that have it.
    pub(crate) fn q_norm(&self, ctx: &Ctx, normed: &mut Buf, rstd: &mut Buf, q: &Buf, rows: usize, w: &Buf) {
        let (heads, e) = (self.config.heads, self.config.head_dim);
        ops::rms_norm(ctx, normed, rstd, q, w, rows * heads, e, self.eps());
    }

    /// RMSNorm per head of the keys; only for models that have it.
    pub(crate) fn k_norm(&self, ctx: &Ctx, normed: &mut Buf, rstd: &mut Buf, k: &Buf, rows: usize, w: &Buf) {
        let (heads, e) = (self.config.kv_heads, self.config.head_dim);
        ops::rms_norm(ctx, normed, rstd, k, w, rows * heads, e, self.eps());
    }

    /// Turns queries and keys by their positions.
    pub(crate) fn rope(&self, ctx: &Ctx, q: &mut Buf, k: &mut Buf, positions: &[u32], table: &RopeTable) {
        ops::rope(ctx, q, positions, self.config.heads, table);
        ops::rope(ctx, k, positions, self.config.kv_heads, table);
    }

    /// `x + attended · Woᵀ`.
    pub(crate) fn output(&self, ctx: &Ctx, x: Residual<'_>, attended: &Buf, rows: usize) {
        x.add(ctx, attended, rows, &self.packed.o, self.weights.o_bias.as_ref());
    }

    /// `hidden = silu(gate) · up` with `gate_up = normed · Wᵀ`, then `x + hidden · Wdᵀ`.
    pub(crate) fn mlp(
        &self,
        ctx: &Ctx,
        x: Residual<'_>,
        normed: &Buf,
        rows: usize,
        gate_up: &mut Buf,
        hidden: &mut Buf,
    ) {
        ops::linear(ctx, gate_up, normed, rows, &self.packed.gate_up, None);
        ops::swiglu_fused(ctx, hidden, gate_up, rows, self.config.intermediate_size);
        x.add(ctx, hidden, rows, &self.packed.down, None);
    }
}

/// Where a residual connection goes. Both ways give the same bits: the product's sum is complete before it is added.
pub(crate) enum Residual<'a> {
    /// Onto the stream itself.
    InPlace(&'a mut Buf),
    /// To a new buffer, where the old stream is needed later.
    Apart {
        /// The old stream.
        from: &'a Buf,
        /// The new one; overwritten.
        to: &'a mut Buf,
    },
}

impl Residual<'_> {
    fn add(self, ctx: &Ctx, input: &Buf, rows: usize, w: &Packed, bias: Option<&Buf>) {
        match (self, bias) {
            (Self::Apart { from, to }, bias) => {
                ops::linear(ctx, to, input, rows, w, bias);
                ops::add(ctx, to, from);
            }
            (Self::InPlace(x), None) => ops::linear_add(ctx, x, input, rows, w),
            (Self::InPlace(x), bias) => {
                let mut product = Buf::zeros(x.len());
                ops::linear(ctx, &mut product, input, rows, w, bias);
                ops::add(ctx, x, &product);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, NewModel};

    /// What the kernels read of a critic has no panel for the vocabulary; a policy's has.
    #[test]
    fn a_critic_packs_no_language_head() {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 16, "max_positions": 8,
        }))
        .unwrap();
        let policy = Model::init(&new.config(1000).unwrap(), 1);
        let ctx = Ctx::serial();
        let bytes = |model: &Model| {
            let packed = model.packed(&ctx);
            [packed.head.as_ref(), packed.value.as_ref()].map(|head| head.map_or(0, Packed::bytes))
        };
        assert_eq!(bytes(&policy), [1008 * 16 * 4, 0]);
        assert_eq!(bytes(&policy.to_critic()), [0, 16 * 16 * 4]);
        assert_eq!(bytes(&policy.with_value_head()), [1008 * 16 * 4, 16 * 16 * 4]);
    }
}
