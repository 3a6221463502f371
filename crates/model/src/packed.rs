//! The matrices of a model in the layout of the kernels, created once per version of the weights.

use rloom_ops::{self as ops, Bf16, Ctx, Element, Packed};

use crate::tensors::{LayerTensors, TensorSet};
use crate::{Dtype, ModelConfig};

/// Packed matrices of one layer.
#[derive(Debug)]
pub(crate) struct PackedLayer<E: Element> {
    pub(crate) qkv: Packed<E>,
    pub(crate) o: Packed<E>,
    pub(crate) gate_up: Packed<E>,
    pub(crate) down: Packed<E>,
}

/// Packed matrices of a model.
#[derive(Debug)]
pub(crate) struct PackedSet<E: Element> {
    pub(crate) layers: Vec<PackedLayer<E>>,
    /// The language head; `None` in a critic.
    pub(crate) head: Option<Packed<E>>,
    /// The value head, if any.
    pub(crate) value: Option<Packed<E>>,
}

/// Packed matrices of a model in its dtype.
#[derive(Debug)]
pub(crate) enum PackedWeights {
    F32(PackedSet<f32>),
    Bf16(PackedSet<Bf16>),
}

impl PackedWeights {
    pub(crate) fn new(ctx: &Ctx, weights: &TensorSet, config: &ModelConfig) -> Self {
        match config.dtype {
            Dtype::F32 => Self::F32(PackedSet::new(ctx, weights, config)),
            Dtype::Bf16 => Self::Bf16(PackedSet::new(ctx, weights, config)),
        }
    }

    /// Packs other weights of the same shape into the same memory.
    pub(crate) fn repack(&mut self, ctx: &Ctx, weights: &TensorSet) {
        match self {
            Self::F32(set) => set.repack(ctx, weights),
            Self::Bf16(set) => set.repack(ctx, weights),
        }
    }
}

impl<E: Element> PackedSet<E> {
    fn new(ctx: &Ctx, weights: &TensorSet, c: &ModelConfig) -> Self {
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let layer = |layer: &LayerTensors| PackedLayer {
            qkv: ops::pack(ctx, &layer.qkv, he + 2 * ge, d),
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

    fn repack(&mut self, ctx: &Ctx, weights: &TensorSet) {
        for (packed, layer) in self.layers.iter_mut().zip(&weights.layers) {
            ops::repack(ctx, &mut packed.qkv, &layer.qkv);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, NewModel};

    fn head_bytes(model: &Model) -> [usize; 2] {
        fn of<E: Element>(packed: &PackedSet<E>) -> [usize; 2] {
            [&packed.head, &packed.value].map(|head| head.as_ref().map_or(0, Packed::bytes))
        }
        match model.packed(&Ctx::serial()) {
            PackedWeights::F32(packed) => of(packed),
            PackedWeights::Bf16(packed) => of(packed),
        }
    }

    /// A critic packs no panels for the vocabulary; a policy does.
    #[test]
    fn a_critic_packs_no_language_head() {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 16, "max_positions": 8,
        }))
        .unwrap();
        let policy = Model::init(&new.config(1000).unwrap(), 1);
        assert_eq!(head_bytes(&policy), [1008 * 16 * 4, 0]);
        assert_eq!(head_bytes(&policy.to_critic()), [0, 16 * 16 * 4]);
        let valued = policy.with_value_head();
        assert_eq!(head_bytes(&valued), [1008 * 16 * 4, 16 * 16 * 4]);
        assert_eq!(head_bytes(&valued.with_dtype(Dtype::Bf16)), [1008 * 16 * 2, 16 * 16 * 2]);
    }
}
