//! The matrices of a model in the layout of the kernels, created once per version of the weights.

use rloom_ops::{self as ops, Bf16, Ctx, Element, Matrix, Packed, Weight};

use crate::adapter::{PackedAdapterSet, PackedFactors, Projection};
use crate::base::Base;
use crate::tensors::{LayerTensors, TensorSet, ValueHead};
use crate::{Dtype, ModelConfig, OutputHeads};

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
            Dtype::F32 => Self::F32(PackedSet::new(ctx, &base.config, &base.weights)),
            Dtype::Bf16 => Self::Bf16(PackedSet::new(ctx, &base.config, &base.weights)),
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
            Self::F32(set) => set.repack(ctx, &base.weights),
            Self::Bf16(set) => set.repack(ctx, &base.weights),
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

impl<E: Element> PackedLayer<E> {
    pub(crate) fn new(ctx: &Ctx, c: &ModelConfig, weights: &LayerTensors) -> Self {
        let pack = |projection: Projection| {
            let [n, k] = projection.shape(c);
            ops::pack(ctx, weights.matrix(projection), n, k)
        };
        Self {
            qkv: pack(Projection::Qkv),
            o: pack(Projection::Output),
            gate_up: pack(Projection::GateUp),
            down: pack(Projection::Down),
        }
    }

    /// The weight of a product.
    pub(crate) fn of(&self, projection: Projection) -> &Packed<E> {
        match projection {
            Projection::Qkv => &self.qkv,
            Projection::Output => &self.o,
            Projection::GateUp => &self.gate_up,
            Projection::Down => &self.down,
        }
    }
}

impl<E: Element> PackedSet<E> {
    fn new(ctx: &Ctx, c: &ModelConfig, weights: &TensorSet) -> Self {
        let layers = weights.layers.iter().map(|layer| PackedLayer::new(ctx, c, layer)).collect();
        Self::of(ctx, c, layers, Some(weights.head_table().into()), weights.value.as_ref())
    }

    /// Packed layers and heads: the language head, if there is one, from the rows of `table`.
    pub(crate) fn of(
        ctx: &Ctx,
        c: &ModelConfig,
        layers: Vec<PackedLayer<E>>,
        table: Option<Matrix<'_>>,
        value: Option<&ValueHead>,
    ) -> Self {
        let (heads, d) = (c.output_heads, c.hidden_size);
        Self {
            layers,
            head: table.filter(|_| heads.language()).map(|table| ops::pack(ctx, table, c.vocab_size, d)),
            value: value.map(|head| ops::pack(ctx, &head.weight, heads.labels(), d)),
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
            for projection in Projection::ALL {
                *to.matrix_mut(projection) = layer.of(projection).rows();
            }
        }
        if let Some((head, to)) = self.head.as_ref().zip(to.head.as_mut()) {
            *to = head.rows();
        }
    }

    fn repack(&mut self, ctx: &Ctx, weights: &TensorSet) {
        for (layer, weights) in self.layers.iter_mut().zip(&weights.layers) {
            ops::repack(ctx, &mut layer.qkv, &weights.qkv);
            ops::repack(ctx, &mut layer.o, &weights.o);
            ops::repack(ctx, &mut layer.gate_up, &weights.gate_up);
            ops::repack(ctx, &mut layer.down, &weights.down);
        }
        if let Some(head) = &mut self.head {
            ops::repack(ctx, head, weights.head_table());
        }
        if let Some((packed, head)) = self.value.as_mut().zip(weights.value.as_ref()) {
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
