//! The matrices of a model in the layout of the kernels, created once per version of the weights.

use rloom_ops::{self as ops, Bf16, Ctx, Element, Packed, Weight};

use crate::adapter::{PackedAdapterSet, PackedFactors, Projection};
use crate::base::Base;
use crate::tensors::TensorSet;
use crate::{Dtype, OutputHeads};

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
    /// The value head, if any; that of an adapter is packed with it.
    pub(crate) value: Option<Packed<E>>,
}

/// Packed matrices of a model in its dtype.
#[derive(Debug)]
pub(crate) enum PackedWeights {
    F32(PackedSet<f32>),
    Bf16(PackedSet<Bf16>),
}

impl PackedWeights {
    pub(crate) fn new(ctx: &Ctx, base: &Base) -> Self {
        match base.config.dtype {
            Dtype::F32 => Self::F32(PackedSet::new(ctx, base)),
            Dtype::Bf16 => Self::Bf16(PackedSet::new(ctx, base)),
        }
    }

    /// The same matrices in 8 bits.
    pub(crate) fn quantized(&self, ctx: &Ctx) -> Self {
        match self {
            Self::F32(set) => Self::F32(set.quantized(ctx)),
            Self::Bf16(set) => Self::Bf16(set.quantized(ctx)),
        }
    }

    /// Writes the matrices in rows.
    pub(crate) fn write_rows(&self, to: &mut TensorSet) {
        match self {
            Self::F32(set) => set.write_rows(to),
            Self::Bf16(set) => set.write_rows(to),
        }
    }

    /// Packs other weights of the same shape into the same memory.
    pub(crate) fn repack(&mut self, ctx: &Ctx, base: &Base) {
        match self {
            Self::F32(set) => set.repack(ctx, base),
            Self::Bf16(set) => set.repack(ctx, base),
        }
    }
}

/// What the kernels read of a model: the packed weights, and the packed factors of its adapter, if it has one.
#[derive(Debug)]
pub(crate) struct PackedModel<'a, E: Element> {
    pub(crate) set: &'a PackedSet<E>,
    /// Factors of the adapter.
    pub(crate) adapter: Option<&'a PackedAdapterSet<E>>,
    /// The heads: the base of a reward model's adapter has a language head that is not computed.
    pub(crate) heads: OutputHeads,
}

impl<'a, E: Element> PackedModel<'a, E> {
    /// The language head with the adapter's addition; `None` in a critic.
    pub(crate) fn head(&self) -> Option<Weight<'a, E>> {
        let packed = self.set.head.as_ref().filter(|_| self.heads.language())?;
        let factors = self.adapter.and_then(|adapter| adapter.head.as_ref());
        Some(Weight { packed, low_rank: factors.map(PackedFactors::low_rank) })
    }

    /// The value head, if there is one.
    pub(crate) fn value(&self) -> Option<&'a Packed<E>> {
        self.adapter.map_or(self.set.value.as_ref(), |adapter| adapter.value.as_ref())
    }
}

#[expect(clippy::expl_impl_clone_on_copy, reason = "a derived implementation needs an element that is Clone")]
impl<E: Element> Clone for PackedModel<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for PackedModel<'_, E> {}

/// [`PackedModel`] in the model's dtype.
#[derive(Debug)]
pub(crate) enum PackedForm<'a> {
    F32(PackedModel<'a, f32>),
    Bf16(PackedModel<'a, Bf16>),
}

/// An element in which a model computes.
pub(crate) trait ModelElement: Element {
    /// The packed form of a model that computes in it.
    fn packed(form: PackedForm<'_>) -> Option<PackedModel<'_, Self>>;
}

impl ModelElement for f32 {
    fn packed(form: PackedForm<'_>) -> Option<PackedModel<'_, Self>> {
        if let PackedForm::F32(model) = form { Some(model) } else { None }
    }
}

impl ModelElement for Bf16 {
    fn packed(form: PackedForm<'_>) -> Option<PackedModel<'_, Self>> {
        if let PackedForm::Bf16(model) = form { Some(model) } else { None }
    }
}

impl<E: Element> PackedSet<E> {
    fn new(ctx: &Ctx, base: &Base) -> Self {
        let c = &base.config;
        let layer = |layer: usize| {
            let pack = |projection: Projection| {
                let [n, k] = projection.shape(c);
                ops::pack(ctx, base.matrix(layer, projection), n, k)
            };
            PackedLayer {
                qkv: pack(Projection::Qkv),
                o: pack(Projection::Output),
                gate_up: pack(Projection::GateUp),
                down: pack(Projection::Down),
            }
        };
        let (heads, d) = (c.output_heads, c.hidden_size);
        Self {
            layers: (0..c.layers).map(layer).collect(),
            head: heads.language().then(|| ops::pack(ctx, base.head_table(), c.vocab_size, d)),
            value: base.weights.value.as_ref().map(|head| ops::pack(ctx, &head.weight, heads.labels(), d)),
        }
    }

    /// The value head is not sampled from, and keeps its precision.
    fn quantized(&self, ctx: &Ctx) -> Self {
        let layer = |PackedLayer { qkv, o, gate_up, down }: &PackedLayer<E>| PackedLayer {
            qkv: qkv.quantized(ctx),
            o: o.quantized(ctx),
            gate_up: gate_up.quantized(ctx),
            down: down.quantized(ctx),
        };
        Self {
            layers: self.layers.iter().map(layer).collect(),
            head: self.head.as_ref().map(|head| head.quantized(ctx)),
            value: self.value.clone(),
        }
    }

    fn write_rows(&self, to: &mut TensorSet) {
        for (layer, to) in self.layers.iter().zip(&mut to.layers) {
            for (projection, packed) in [
                (Projection::Qkv, &layer.qkv),
                (Projection::Output, &layer.o),
                (Projection::GateUp, &layer.gate_up),
                (Projection::Down, &layer.down),
            ] {
                *to.matrix_mut(projection) = packed.rows();
            }
        }
        if let Some((head, to)) = self.head.as_ref().zip(to.head.as_mut()) {
            *to = head.rows();
        }
    }

    fn repack(&mut self, ctx: &Ctx, base: &Base) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            ops::repack(ctx, &mut layer.qkv, base.matrix(index, Projection::Qkv));
            ops::repack(ctx, &mut layer.o, base.matrix(index, Projection::Output));
            ops::repack(ctx, &mut layer.gate_up, base.matrix(index, Projection::GateUp));
            ops::repack(ctx, &mut layer.down, base.matrix(index, Projection::Down));
        }
        if let Some(head) = &mut self.head {
            ops::repack(ctx, head, base.head_table());
        }
        if let Some((packed, head)) = self.value.as_mut().zip(base.weights.value.as_ref()) {
            ops::repack(ctx, packed, &head.weight);
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
            PackedForm::F32(packed) => of(packed.set),
            PackedForm::Bf16(packed) => of(packed.set),
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
