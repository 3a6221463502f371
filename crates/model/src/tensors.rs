//! The tensors of a model: one structure for weights, gradients and optimizer moments.
//!
//! Buffers have the layout of the kernels: `qkv` holds the rows of three projections, `gate_up` those of two. Files
//! store them separately; [`specs`] maps file tensors to buffers.

use std::sync::Arc;

use rloom_ops::Buf;

use crate::ModelConfig;
use crate::adapter::{self, Projection};

/// The tensors of one decoder layer. Shapes: D hidden, H query heads, G kv heads, E head size, F feed-forward.
#[derive(Debug, Clone)]
pub(crate) struct LayerTensors {
    /// `[D]`
    pub(crate) attention_norm: Buf,
    /// `[(H + 2G)·E, D]`: the rows of the queries, of the keys, of the values.
    pub(crate) qkv: Buf,
    /// `[(H + 2G)·E]`
    pub(crate) qkv_bias: Option<Buf>,
    /// `[E]` each
    pub(crate) qk_norm: Option<[Buf; 2]>,
    /// `[D, H·E]`
    pub(crate) o: Buf,
    /// `[D]`
    pub(crate) o_bias: Option<Buf>,
    /// `[D]`
    pub(crate) mlp_norm: Buf,
    /// `[2F, D]`: the gate's rows, then the up projection's.
    pub(crate) gate_up: Buf,
    /// `[D, F]`
    pub(crate) down: Buf,
}

/// All tensors of a model.
#[derive(Debug, Clone)]
pub(crate) struct TensorSet {
    /// `[V, D]`. Shared with published versions until it changes: it is read in f32.
    pub(crate) embedding: Arc<Buf>,
    pub(crate) layers: Vec<LayerTensors>,
    /// `[D]`
    pub(crate) norm: Buf,
    /// The language head, `[V, D]`; `None` if it is the embedding, and in a critic.
    pub(crate) head: Option<Buf>,
    pub(crate) value: Option<ValueHead>,
}

/// The value head; L labels.
#[derive(Debug, Clone)]
pub(crate) struct ValueHead {
    /// `[L, D]`
    pub(crate) weight: Buf,
    /// `[L]`; a reward model of completions has none.
    pub(crate) bias: Option<Buf>,
}

impl ValueHead {
    /// Zeros in the shapes of `config`; `None` for a model without a value head.
    pub(crate) fn zeros(config: &ModelConfig) -> Option<Self> {
        let heads = config.output_heads;
        let labels = heads.labels();
        heads.value().then(|| Self {
            weight: Buf::zeros(labels * config.hidden_size),
            bias: heads.value_bias().then(|| Buf::zeros(labels)),
        })
    }

    /// The buffers.
    pub(crate) fn bufs(&self) -> impl Iterator<Item = &Buf> {
        std::iter::once(&self.weight).chain(&self.bias)
    }

    /// The buffers, mutable.
    pub(crate) fn bufs_mut(&mut self) -> impl Iterator<Item = &mut Buf> {
        std::iter::once(&mut self.weight).chain(&mut self.bias)
    }
}

impl LayerTensors {
    fn zeros(c: &ModelConfig) -> Self {
        let (d, f, e) = (c.hidden_size, c.intermediate_size, c.head_dim);
        let (he, ge) = (c.heads * e, c.kv_heads * e);
        let zeros = Buf::zeros;
        Self {
            attention_norm: zeros(d),
            qkv: zeros((he + 2 * ge) * d),
            qkv_bias: c.qkv_bias.then(|| zeros(he + 2 * ge)),
            qk_norm: c.qk_norm().then(|| [zeros(e), zeros(e)]),
            o: zeros(d * he),
            o_bias: c.output_bias.then(|| zeros(d)),
            mlp_norm: zeros(d),
            gate_up: zeros(2 * f * d),
            down: zeros(d * f),
        }
    }

    /// The vectors alone.
    pub(crate) fn without_matrices(&self) -> Self {
        Self {
            attention_norm: self.attention_norm.clone(),
            qkv: Buf::default(),
            qkv_bias: self.qkv_bias.clone(),
            qk_norm: self.qk_norm.clone(),
            o: Buf::default(),
            o_bias: self.o_bias.clone(),
            mlp_norm: self.mlp_norm.clone(),
            gate_up: Buf::default(),
            down: Buf::default(),
        }
    }

    /// The weight of a product.
    pub(crate) fn matrix(&self, projection: Projection) -> &Buf {
        match projection {
            Projection::Qkv => &self.qkv,
            Projection::Output => &self.o,
            Projection::GateUp => &self.gate_up,
            Projection::Down => &self.down,
        }
    }

    /// As [`matrix`](Self::matrix), mutable.
    pub(crate) fn matrix_mut(&mut self, projection: Projection) -> &mut Buf {
        match projection {
            Projection::Qkv => &mut self.qkv,
            Projection::Output => &mut self.o,
            Projection::GateUp => &mut self.gate_up,
            Projection::Down => &mut self.down,
        }
    }

    /// All but the products' weights, mutable.
    fn vectors_mut(&mut self) -> impl Iterator<Item = &mut Buf> {
        [&mut self.attention_norm, &mut self.mlp_norm]
            .into_iter()
            .chain(&mut self.qkv_bias)
            .chain(self.qk_norm.iter_mut().flatten())
            .chain(&mut self.o_bias)
    }

    fn bufs(&self) -> impl Iterator<Item = &Buf> {
        [&self.attention_norm, &self.qkv]
            .into_iter()
            .chain(&self.qkv_bias)
            .chain(self.qk_norm.iter().flatten())
            .chain([&self.o])
            .chain(&self.o_bias)
            .chain([&self.mlp_norm, &self.gate_up, &self.down])
    }

    pub(crate) fn bufs_mut(&mut self) -> impl Iterator<Item = &mut Buf> {
        [&mut self.attention_norm, &mut self.qkv]
            .into_iter()
            .chain(&mut self.qkv_bias)
            .chain(self.qk_norm.iter_mut().flatten())
            .chain([&mut self.o])
            .chain(&mut self.o_bias)
            .chain([&mut self.mlp_norm, &mut self.gate_up, &mut self.down])
    }
}

impl TensorSet {
    /// Zeros in the shapes of `config`.
    pub(crate) fn zeros(config: &ModelConfig) -> Self {
        let d = config.hidden_size;
        let table = config.vocab_size * d;
        Self {
            embedding: Arc::new(Buf::zeros(table)),
            layers: (0..config.layers).map(|_| LayerTensors::zeros(config)).collect(),
            norm: Buf::zeros(d),
            head: config.untied_head().then(|| Buf::zeros(table)),
            value: ValueHead::zeros(config),
        }
    }

    /// Table of the language head: a separate one, or the embedding.
    pub(crate) fn head_table(&self) -> &Buf {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// As [`head_table`](Self::head_table), mutable.
    pub(crate) fn head_table_mut(&mut self) -> &mut Buf {
        match &mut self.head {
            Some(head) => head,
            None => Arc::make_mut(&mut self.embedding),
        }
    }

    /// The tensors that are not packed: vectors, and the embedding, which is shared.
    pub(crate) fn without_matrices(&self) -> Self {
        Self {
            embedding: Arc::clone(&self.embedding),
            layers: self.layers.iter().map(LayerTensors::without_matrices).collect(),
            norm: self.norm.clone(),
            head: self.head.as_ref().map(|_| Buf::default()),
            value: self.value.clone(),
        }
    }

    /// All buffers, in the order of [`TensorSpec::buffer`].
    pub(crate) fn bufs(&self) -> Vec<&Buf> {
        std::iter::once(&*self.embedding)
            .chain(self.layers.iter().flat_map(LayerTensors::bufs))
            .chain([&self.norm])
            .chain(&self.head)
            .chain(self.value.iter().flat_map(ValueHead::bufs))
            .collect()
    }

    /// As [`TensorSet::bufs`], mutable.
    pub(crate) fn bufs_mut(&mut self) -> Vec<&mut Buf> {
        self.bufs_with(LayerTensors::bufs_mut)
    }

    /// All buffers but the layers' matrices.
    pub(crate) fn sums_mut(&mut self) -> Vec<&mut Buf> {
        self.bufs_with(LayerTensors::vectors_mut)
    }

    /// All buffers, with those of each layer that `of_layer` returns.
    fn bufs_with<'a, I: Iterator<Item = &'a mut Buf>>(
        &'a mut self,
        of_layer: impl Fn(&'a mut LayerTensors) -> I,
    ) -> Vec<&'a mut Buf> {
        std::iter::once(Arc::make_mut(&mut self.embedding))
            .chain(self.layers.iter_mut().flat_map(of_layer))
            .chain([&mut self.norm])
            .chain(&mut self.head)
            .chain(self.value.iter_mut().flat_map(ValueHead::bufs_mut))
            .collect()
    }

    /// Tensors with their file names. Those that a frozen base has in bf16 are left out.
    pub(crate) fn named<'a>(
        &'a self,
        specs: &'a [TensorSpec],
    ) -> impl Iterator<Item = (&'a TensorSpec, &'a [f32])> {
        named(self.bufs(), specs)
    }
}

/// The tensors in some buffers, unless a buffer is empty.
pub(crate) fn named<'a>(
    bufs: Vec<&'a Buf>,
    specs: &'a [TensorSpec],
) -> impl Iterator<Item = (&'a TensorSpec, &'a [f32])> {
    specs.iter().filter_map(move |spec| {
        let buf = bufs[spec.buffer].as_slice();
        (!buf.is_empty()).then(|| (spec, &buf[spec.offset..][..spec.len()]))
    })
}

/// Value head names of the classifiers of `transformers`.
const VALUE_WEIGHT: &str = "score.weight";
const VALUE_BIAS: &str = "score.bias";

/// A tensor as named in files, and its location in the buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Hugging Face name.
    pub name: String,
    /// Shape, rows first.
    pub shape: Vec<usize>,
    /// True if weight decay applies: matrices, including the embedding table, but not norms and biases.
    pub decays: bool,
    /// Index of its buffer, in the order of [`TensorSet::bufs`].
    pub(crate) buffer: usize,
    /// Offset of its first element in the buffer.
    pub(crate) offset: usize,
}

impl TensorSpec {
    /// True if it belongs to the value head.
    pub fn is_value_head(&self) -> bool {
        let name = self.name.strip_prefix(adapter::PREFIX).unwrap_or(&self.name);
        name == VALUE_WEIGHT || name == VALUE_BIAS
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All tensors of a model, in the order of their buffers.
pub(crate) fn specs(c: &ModelConfig) -> Vec<TensorSpec> {
    let (d, f, e, v) = (c.hidden_size, c.intermediate_size, c.head_dim, c.vocab_size);
    let (he, ge) = (c.heads * e, c.kv_heads * e);
    let mut list = SpecList::default();
    list.new_buffer("model.embed_tokens.weight".into(), vec![v, d]);
    for l in 0..c.layers {
        let name = |tensor: &str| format!("model.layers.{l}.{tensor}");
        list.new_buffer(name("input_layernorm.weight"), vec![d]);
        list.new_buffer(name("self_attn.q_proj.weight"), vec![he, d]);
        list.append(name("self_attn.k_proj.weight"), vec![ge, d]);
        list.append(name("self_attn.v_proj.weight"), vec![ge, d]);
        if c.qkv_bias {
            list.new_buffer(name("self_attn.q_proj.bias"), vec![he]);
            list.append(name("self_attn.k_proj.bias"), vec![ge]);
            list.append(name("self_attn.v_proj.bias"), vec![ge]);
        }
        if c.qk_norm() {
            list.new_buffer(name("self_attn.q_norm.weight"), vec![e]);
            list.new_buffer(name("self_attn.k_norm.weight"), vec![e]);
        }
        list.new_buffer(name("self_attn.o_proj.weight"), vec![d, he]);
        if c.output_bias {
            list.new_buffer(name("self_attn.o_proj.bias"), vec![d]);
        }
        list.new_buffer(name("post_attention_layernorm.weight"), vec![d]);
        list.new_buffer(name("mlp.gate_proj.weight"), vec![f, d]);
        list.append(name("mlp.up_proj.weight"), vec![f, d]);
        list.new_buffer(name("mlp.down_proj.weight"), vec![d, f]);
    }
    list.new_buffer("model.norm.weight".into(), vec![d]);
    if c.untied_head() {
        list.new_buffer("lm_head.weight".into(), vec![v, d]);
    }
    for (name, shape) in value_head_shapes(c) {
        list.new_buffer(name.into(), shape);
    }
    list.specs
}

/// Names and shapes of the tensors of the value head, if there is one.
pub(crate) fn value_head_shapes(c: &ModelConfig) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    let (heads, labels) = (c.output_heads, c.output_heads.labels());
    let weight = heads.value().then(|| (VALUE_WEIGHT, vec![labels, c.hidden_size]));
    let bias = heads.value_bias().then(|| (VALUE_BIAS, vec![labels]));
    weight.into_iter().chain(bias)
}

#[derive(Default)]
struct SpecList {
    specs: Vec<TensorSpec>,
    buffers: usize,
}

impl SpecList {
    /// Adds a tensor in a new buffer.
    fn new_buffer(&mut self, name: String, shape: Vec<usize>) {
        let decays = shape.len() > 1;
        self.specs.push(TensorSpec { name, shape, decays, buffer: self.buffers, offset: 0 });
        self.buffers += 1;
    }

    /// Adds a tensor after the previous one, in the same buffer.
    fn append(&mut self, name: String, shape: Vec<usize>) {
        let decays = shape.len() > 1;
        let offset = self.specs.last().map_or(0, |before| before.offset + before.len());
        self.specs.push(TensorSpec { name, shape, decays, buffer: self.buffers - 1, offset });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, NewModel, OutputHeads};

    #[test]
    fn specs_and_buffers_agree() {
        for family in Family::ALL {
            for tie_embeddings in [false, true] {
                let new: NewModel = serde_json::from_value(serde_json::json!({
                    "family": family, "layers": 2, "hidden_size": 24, "heads": 4, "kv_heads": 2, "head_dim": 8,
                    "intermediate_size": 40, "max_positions": 64, "tie_embeddings": tie_embeddings,
                }))
                .unwrap();
                let mut config = new.config(30).unwrap();
                config.output_bias = family == Family::Llama;
                for heads in [
                    OutputHeads::Language,
                    OutputHeads::LanguageAndValue,
                    OutputHeads::Value,
                    OutputHeads::Reward,
                    OutputHeads::ProcessReward,
                ] {
                    config.output_heads = heads;
                    check(&config);
                }
            }
        }
    }

    fn check(config: &ModelConfig) {
        let set = TensorSet::zeros(config);
        let specs = specs(config);
        let mut filled = vec![0; set.bufs().len()];
        for spec in &specs {
            assert_eq!(filled[spec.buffer], spec.offset, "{}", spec.name);
            filled[spec.buffer] += spec.len();
        }
        let lens: Vec<usize> = set.bufs().iter().map(|buf| buf.len()).collect();
        assert_eq!(filled, lens);
    }
}
