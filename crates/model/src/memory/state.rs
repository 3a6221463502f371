//! Memory of weights, gradients and moments by formula.

use rloom_ops::{Bf16, MOMENT_BLOCK, mapped_bytes as mapped, packed_bytes};

use crate::adapter::{LoraConfig, Projection};
use crate::moments::SMALL;
use crate::{Dtype, ModelConfig, MomentFormat};

/// Buffers of equal size: how many, and the elements of each.
type Buffers = Vec<(u64, u64)>;

/// Bytes of an f32.
const F32: u64 = size_of::<f32>() as u64;

impl ModelConfig {
    /// Weights in f32, in bytes; gradients take the same.
    pub fn weight_bytes(&self) -> u64 {
        let buffers = [self.matrices(), self.vectors(), vec![(1, self.embedding_elements())]].concat();
        sum(&buffers, |elements| mapped(elements * F32))
    }

    /// Both moments of all weights, in bytes.
    pub fn moment_bytes(&self, format: MomentFormat) -> u64 {
        let buffers = [self.matrices(), self.vectors(), vec![(1, self.embedding_elements())]].concat();
        sum(&buffers, |elements| format.bytes(elements))
    }

    /// Weights packed for the kernels in the model's dtype, in bytes.
    pub fn packed_bytes(&self) -> u64 {
        let head = self.output_heads.language().then_some([self.vocab_size, self.hidden_size]);
        let value = Some([self.output_heads.labels(), self.hidden_size]).filter(|[labels, _]| *labels > 0);
        let layers =
            Projection::ALL.map(|projection| (self.layers as u64, self.packed(projection.shape(self))));
        let heads = head.into_iter().chain(value).map(|shape| (1, self.packed(shape)));
        layers.into_iter().chain(heads).map(|(count, bytes)| count * bytes).sum()
    }

    /// What a published version takes that is no longer the trainer's, in bytes: packed weights, vectors, and the embedding, which
    /// is read in f32.
    pub fn published_bytes(&self) -> u64 {
        self.packed_bytes() + sum(&self.vectors(), |elements| mapped(elements * F32)) + self.embedding_bytes()
    }

    /// A frozen base in bytes: packed weights, vectors and the embedding in f32, and in f32 the matrices in rows, which the
    /// backward pass reads.
    pub fn frozen_bytes(&self) -> u64 {
        let rows = match self.dtype {
            Dtype::F32 => sum(&self.matrices(), |elements| mapped(elements * F32)),
            Dtype::Bf16 => 0,
        };
        rows + sum(&self.vectors(), |elements| mapped(elements * F32))
            + self.embedding_bytes()
            + self.packed_bytes()
    }

    /// Factors of an adapter in f32 and packed, in bytes.
    pub fn adapter_weight_bytes(&self, lora: &LoraConfig) -> u64 {
        // The packed form of the second factor has zeros between the parts of a product, and it is also there scaled, in f32.
        let packed = self.products().zip(ranks(lora)).filter(|(_, rank)| *rank > 0);
        let packed =
            packed.map(|((count, [n, k]), rank)| count * (self.packed([rank, k]) + self.packed([n, rank])));
        let scaled = sum(&self.factors(lora, 1), |elements| mapped(elements * F32));
        self.adapter_gradient_bytes(lora) + packed.sum::<u64>() + scaled
    }

    /// Gradients of an adapter, in bytes.
    pub fn adapter_gradient_bytes(&self, lora: &LoraConfig) -> u64 {
        [0, 1].map(|factor| sum(&self.factors(lora, factor), |elements| mapped(elements * F32))).iter().sum()
    }

    /// Both moments of an adapter, in bytes.
    pub fn adapter_moment_bytes(&self, lora: &LoraConfig, format: MomentFormat) -> u64 {
        [0, 1].map(|factor| sum(&self.factors(lora, factor), |elements| format.bytes(elements))).iter().sum()
    }

    /// Buffers of the first or of the second factors of an adapter.
    fn factors(&self, lora: &LoraConfig, factor: usize) -> Buffers {
        let first = |rank: usize, [_, k]: [usize; 2]| (rank * k) as u64;
        let second = |projection: Option<Projection>| {
            let targets = lora.targets.iter().filter(|target| target.projection() == projection);
            targets.map(|target| (lora.rank * target.features(self)) as u64).sum()
        };
        let projections = Projection::ALL.map(Some).into_iter().chain([None]);
        let products = self.products().zip(ranks(lora)).zip(projections);
        products
            .map(|(((count, shape), rank), projection)| {
                (count, if factor == 0 { first(rank, shape) } else { second(projection) })
            })
            .collect()
    }

    /// Shapes of the products that an adapter may adapt, and how many of each there are; the language head is last.
    fn products(&self) -> impl Iterator<Item = (u64, [usize; 2])> {
        let layers = Projection::ALL.map(|projection| (self.layers as u64, projection.shape(self)));
        layers.into_iter().chain([(1, [self.vocab_size, self.hidden_size])])
    }

    fn packed(&self, [n, k]: [usize; 2]) -> u64 {
        mapped(match self.dtype {
            Dtype::F32 => packed_bytes::<f32>(n, k),
            Dtype::Bf16 => packed_bytes::<Bf16>(n, k),
        } as u64)
    }

    fn embedding_elements(&self) -> u64 {
        self.vocab_size as u64 * self.hidden_size as u64
    }

    fn embedding_bytes(&self) -> u64 {
        mapped(self.embedding_elements() * F32)
    }

    /// Matrices but for the embedding.
    fn matrices(&self) -> Buffers {
        let elements = |[n, k]: [usize; 2]| n as u64 * k as u64;
        let layers = Projection::ALL.map(|projection| (self.layers as u64, elements(projection.shape(self))));
        let head = self.untied_head().then(|| (1, self.embedding_elements()));
        let value = (1, elements([self.output_heads.labels(), self.hidden_size]));
        layers.into_iter().chain(head).chain([value]).collect()
    }

    fn vectors(&self) -> Buffers {
        let layers = self.layers as u64;
        let width = |used: bool, width: usize| if used { width as u64 } else { 0 };
        vec![
            (2 * layers + 1, self.hidden_size as u64),
            (layers, width(self.qkv_bias, (self.heads + 2 * self.kv_heads) * self.head_dim)),
            (2 * layers, width(self.qk_norm(), self.head_dim)),
            (layers, width(self.output_bias, self.hidden_size)),
            (1, width(self.output_heads.value_bias(), self.output_heads.labels())),
        ]
    }
}

impl MomentFormat {
    /// Both moments of a buffer, in bytes.
    pub(crate) fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::Int8 if elements >= SMALL as u64 => {
                // A byte for each, and a scale for each block.
                2 * (elements + F32 * elements.div_ceil(MOMENT_BLOCK as u64))
            }
            Self::Int8 | Self::F32 => 2 * mapped(elements * F32),
        }
    }
}

/// Ranks of an adapter's additions to the products, the language head's last.
fn ranks(lora: &LoraConfig) -> impl Iterator<Item = usize> {
    lora.ranks().into_iter().chain([lora.head_rank()])
}

fn sum(buffers: &[(u64, u64)], bytes: impl Fn(u64) -> u64) -> u64 {
    buffers.iter().map(|&(count, elements)| count * bytes(elements)).sum()
}

#[cfg(test)]
mod tests {
    use rloom_ops::{Ctx, Element, LowRank, Packed};

    use super::*;
    use crate::adapter::{PackedAdapter, PackedAdapterSet, PackedFactors};
    use crate::moments::{BufMoments, Moments};
    use crate::packed::{PackedSet, PackedWeights};
    use crate::{Family, Gradients, LoraTarget, Model, NewModel, OutputHeads};

    fn configs() -> Vec<ModelConfig> {
        let heads = [
            OutputHeads::Language,
            OutputHeads::LanguageAndValue,
            OutputHeads::Value,
            OutputHeads::ProcessReward,
        ];
        let mut configs = Vec::new();
        for (family, heads) in Family::ALL.into_iter().zip(heads.into_iter().cycle()) {
            for tie_embeddings in [false, true] {
                for dtype in [Dtype::F32, Dtype::Bf16] {
                    let new: NewModel = serde_json::from_value(serde_json::json!({
                        "family": family, "layers": 3, "hidden_size": 80, "heads": 4, "kv_heads": 2, "head_dim": 18,
                        "intermediate_size": 61, "max_positions": 64, "tie_embeddings": tie_embeddings,
                    }))
                    .unwrap();
                    let mut config = new.config(75).unwrap();
                    config.output_bias = family == Family::Llama;
                    (config.output_heads, config.dtype) = (heads, dtype);
                    configs.push(config);
                }
            }
        }
        configs
    }

    fn of_set<E: Element>(set: &PackedSet<E>) -> usize {
        let layers = set.layers.iter().flat_map(|layer| [&layer.qkv, &layer.o, &layer.gate_up, &layer.down]);
        layers.chain(&set.head).chain(&set.value).map(Packed::bytes).sum()
    }

    fn of_adapter<E: Element>(set: &PackedAdapterSet<E>) -> u64 {
        let layers =
            set.layers.iter().flat_map(|layer| Projection::ALL.map(|projection| layer.of(projection)));
        let of = |factors: &PackedFactors<E>| {
            let LowRank { a, b, .. } = factors.low_rank();
            (a.bytes() + b.bytes() + factors.scaled_b.len() * size_of::<f32>()) as u64
        };
        layers.flatten().chain(&set.head).map(of).sum()
    }

    fn packed(model: &Model, ctx: &Ctx) -> u64 {
        (match &**model.base().packed(ctx) {
            PackedWeights::F32(set) => of_set(set),
            PackedWeights::Bf16(set) => of_set(set),
        }) as u64
    }

    fn floats<'a>(bufs: impl IntoIterator<Item = &'a rloom_ops::Buf>) -> u64 {
        bufs.into_iter().map(|buf| buf.len() as u64 * F32).sum()
    }

    fn gradients(model: &Model) -> u64 {
        Gradients::zeros(model).bufs().map(|buf| buf.len() as u64 * F32).sum()
    }

    fn moments(model: &Model, format: MomentFormat) -> u64 {
        let mut moments = Moments::zeros(model, format);
        let of = |moments: &mut BufMoments| match moments {
            BufMoments::F32(both) => floats(&*both),
            BufMoments::Int8(both) => {
                let of = |(codes, scales): (&[u8], &[f32])| codes.len() as u64 + scales.len() as u64 * F32;
                both.parts().map(of).iter().sum()
            }
        };
        moments.bufs_mut().map(of).sum()
    }

    #[test]
    fn weights_gradients_and_moments_are_those_of_a_model() {
        let ctx = Ctx::serial();
        for config in configs() {
            let model = Model::init(&config, 1);
            assert_eq!(config.weight_bytes(), floats(model.weights().bufs()), "{config:?}");
            assert_eq!(config.weight_bytes(), gradients(&model), "{config:?}");
            assert_eq!(config.packed_bytes(), packed(&model, &ctx), "{config:?}");
            for format in [MomentFormat::F32, MomentFormat::Int8] {
                assert_eq!(config.moment_bytes(format), moments(&model, format), "{config:?}");
            }
            if config.output_heads == OutputHeads::Language {
                let published = model.packed_only(&ctx);
                let held = floats(published.weights().bufs()) + packed(&published, &ctx);
                assert_eq!(config.published_bytes(), held, "{config:?}");
            }
        }
    }

    #[test]
    fn an_adapter_and_its_base_are_those_of_a_model() {
        let ctx = Ctx::serial();
        let targets =
            [&LoraTarget::LAYER[..], &[LoraTarget::KProj, LoraTarget::DownProj, LoraTarget::LmHead]];
        for config in configs().into_iter().filter(|config| config.output_heads == OutputHeads::Language) {
            for targets in targets {
                let lora = LoraConfig::new(21, 3.0, false, targets);
                let model = Model::init(&config, 1).with_adapter(lora.clone(), 1);
                let factors = floats(model.trained_bufs());
                assert_eq!(config.adapter_gradient_bytes(&lora), factors, "{config:?}");
                assert_eq!(factors, gradients(&model), "{config:?}");
                for format in [MomentFormat::F32, MomentFormat::Int8] {
                    assert_eq!(
                        config.adapter_moment_bytes(&lora, format),
                        moments(&model, format),
                        "{config:?}"
                    );
                }
                let packed_factors = match model.adapter().unwrap().packed(&ctx) {
                    PackedAdapter::F32(set) => of_adapter(set),
                    PackedAdapter::Bf16(set) => of_adapter(set),
                };
                assert_eq!(config.adapter_weight_bytes(&lora), factors + packed_factors, "{config:?}");
                // Matrices in bf16 are empty among the weights.
                let rows = floats(model.weights().bufs());
                assert_eq!(config.frozen_bytes(), rows + packed(&model, &ctx), "{config:?}");
            }
        }
    }
}
