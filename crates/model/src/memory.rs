//! Memory of training and of decoding by formula.

use std::collections::BTreeMap;

use rloom_ops::{Bf16, attention_scratch_bytes};

use crate::model::attention_shape;
use crate::{ActivationCheckpointing, Dtype, ModelConfig};

/// Scratch memory of a thread apart from attention's, in bytes: blocks of matrix products and tiles of logits, with the pages
/// around them.
const THREAD_SCRATCH: u64 = 4 << 20;
/// Scratch memory that all threads share, in bytes: derivatives of a block of logits.
const SHARED_SCRATCH: u64 = 6 << 20;

/// Bytes per token of the buffers that are in use at some point of a training step.
type Buffers = Vec<usize>;

/// Widths of the buffers of a training step, in bytes per token. `f32` buffers are wide, those in the model's dtype narrow.
struct Widths {
    /// Residual stream, and its normalised form.
    stream: usize,
    normed: usize,
    /// Queries, or keys; wide and narrow.
    queries: [usize; 2],
    keys: [usize; 2],
    /// One number per query head, and per key head.
    heads: usize,
    kv_heads: usize,
    /// SwiGLU's product, and its factors.
    hidden: usize,
    gate_up: usize,
    qk_norm: bool,
}

/// One number per token.
const SCALE: usize = size_of::<f32>();

impl Widths {
    fn of(config: &ModelConfig) -> Self {
        let (wide, narrow) = (size_of::<f32>(), config.dtype.bytes());
        let (he, ge) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        Self {
            stream: config.hidden_size * wide,
            normed: config.hidden_size * narrow,
            queries: [he * wide, he * narrow],
            keys: [ge * wide, ge * narrow],
            heads: config.heads * wide,
            kv_heads: config.kv_heads * wide,
            hidden: config.intermediate_size * narrow,
            gate_up: 2 * config.intermediate_size * narrow,
            qk_norm: config.qk_norm(),
        }
    }

    /// Queries, keys, values, attention result and its log-sum-exp.
    fn attention(&self) -> Buffers {
        let ([_, queries], [_, keys]) = (self.queries, self.keys);
        vec![queries, keys, keys, queries, self.heads]
    }

    fn mlp(&self) -> Buffers {
        vec![self.stream, self.gate_up]
    }

    /// While a layer's attention is computed; queries and keys before and after QK-norm.
    fn attending(&self) -> Buffers {
        let mut buffers = self.attention();
        if self.qk_norm {
            buffers.extend([self.queries[1], self.keys[1]]);
        }
        buffers
    }

    /// Activations of a layer that are kept for the backward pass.
    fn kept(&self, checkpointing: ActivationCheckpointing) -> Buffers {
        let input = vec![self.stream];
        match checkpointing {
            ActivationCheckpointing::None => [input, self.attention(), self.mlp()].concat(),
            ActivationCheckpointing::Attention => [input, self.mlp()].concat(),
            ActivationCheckpointing::Block => input,
        }
    }

    /// Points of a layer's forward pass, with its input.
    fn forward(&self, checkpointing: ActivationCheckpointing) -> Vec<Buffers> {
        let mut after = self.kept(checkpointing);
        if checkpointing == ActivationCheckpointing::Block {
            after.push(self.stream);
        }
        let kept = match checkpointing {
            ActivationCheckpointing::None => after.clone(),
            _ => [vec![self.stream, self.stream], self.attention()].concat(),
        };
        after.extend([self.hidden, self.stream]);
        vec![[vec![self.stream], self.attending()].concat(), kept, after]
    }

    /// Points of the heads' passes, besides what all layers keep.
    fn heads(&self) -> Vec<Buffers> {
        let rows = [self.stream, self.normed, SCALE];
        let forward = [&[self.stream][..], &rows].concat();
        let language = [&[self.stream, self.stream][..], &rows].concat();
        let norm = vec![self.stream, self.stream, self.stream, SCALE, self.stream];
        vec![forward, language, norm]
    }

    /// Points of a layer's backward pass, with its input and the derivative of its output.
    fn backward(&self, checkpointing: ActivationCheckpointing) -> Vec<Buffers> {
        let ([wide_queries, queries], [wide_keys, keys]) = (self.queries, self.keys);
        let streams = vec![self.stream; 2];
        let kept_attention = match checkpointing {
            ActivationCheckpointing::Attention => Vec::new(),
            _ => self.attention(),
        };
        let mut points = Vec::new();
        if checkpointing != ActivationCheckpointing::None {
            points.push([streams.clone(), self.attending()].concat());
        }
        // The feed-forward layer.
        let mlp = [streams.clone(), kept_attention, self.mlp()].concat();
        points.push([mlp.clone(), vec![self.hidden]].concat());
        points.push([mlp.clone(), vec![self.normed, SCALE]].concat());
        points.push([mlp, vec![SCALE, self.stream]].concat());
        // Attention: its derivatives, those of QK-norm, and the product with the projection.
        let derivatives = vec![wide_queries, wide_queries, wide_keys, wide_keys];
        let mut inner = [streams.clone(), self.attention(), derivatives.clone()].concat();
        if self.qk_norm {
            inner.extend([queries, keys, self.heads, self.kv_heads]);
        }
        points.push(inner.clone());
        let projected = queries + 2 * keys;
        let mut joined = [streams.clone(), derivatives].concat();
        if self.qk_norm {
            // The attention result and its log-sum-exp are no longer in use.
            let mut norms = inner;
            for freed in [queries, self.heads] {
                if let Some(place) = norms.iter().position(|&bytes| bytes == freed) {
                    norms.swap_remove(place);
                }
            }
            points.push([norms, vec![wide_keys]].concat());
            joined.push(wide_keys);
        } else if let Some(place) = joined.iter().position(|&bytes| bytes == wide_queries) {
            joined.swap_remove(place);
        }
        points.push([joined, vec![projected]].concat());
        points.push([streams.clone(), vec![projected, self.normed, SCALE]].concat());
        points.push([streams, vec![projected, SCALE, self.stream]].concat());
        points
    }
}

impl ModelConfig {
    /// Memory for training per token of a micro-batch, in bytes: activations and derivatives. Buffers of one width are reused
    /// for each other, so that it is the most buffers in use of each width, and not the most bytes in use.
    pub fn training_bytes_per_token(&self, checkpointing: ActivationCheckpointing) -> u64 {
        let widths = Widths::of(self);
        let kept = widths.kept(checkpointing);
        let mut most: BTreeMap<usize, usize> = BTreeMap::new();
        let mut at = |layers: usize, point: &[usize]| {
            let mut used: BTreeMap<usize, usize> = BTreeMap::new();
            for &bytes in point {
                *used.entry(bytes).or_default() += 1;
            }
            for &bytes in &kept {
                *used.entry(bytes).or_default() += layers;
            }
            for (bytes, buffers) in used {
                let most = most.entry(bytes).or_default();
                *most = buffers.max(*most);
            }
        };
        let others = self.layers.saturating_sub(1);
        let layer = widths.forward(checkpointing).into_iter().chain(widths.backward(checkpointing));
        layer.for_each(|point| at(others, &point));
        widths.heads().iter().for_each(|point| at(self.layers, point));
        most.into_iter().map(|(bytes, buffers)| (bytes * buffers) as u64).sum()
    }

    /// Scratch memory of training with `threads` threads, in bytes, if the longest sequence has `longest` tokens. It grows
    /// with the length of a sequence, not with the number of sequences.
    pub fn training_scratch_bytes(&self, threads: usize, longest: usize) -> u64 {
        let shape = attention_shape(self);
        let attention = match self.dtype {
            Dtype::F32 => attention_scratch_bytes::<f32>(shape, longest),
            Dtype::Bf16 => attention_scratch_bytes::<Bf16>(shape, longest),
        };
        threads as u64 * (attention as u64 + THREAD_SCRATCH) + SHARED_SCRATCH
    }
}

impl ModelConfig {
    /// Memory of a decoding step per row, in bytes, without the cache and the rows of logits that sampling needs.
    pub fn decoding_bytes_per_row(&self) -> u64 {
        let Widths { stream, normed, queries: [_, queries], keys: [_, keys], hidden, .. } = Widths::of(self);
        (2 * stream + normed + 2 * queries + 2 * keys + hidden + SCALE) as u64
    }

    /// Scratch memory of decoding with `threads` threads, in bytes.
    pub fn decoding_scratch_bytes(&self, threads: usize) -> u64 {
        threads as u64 * THREAD_SCRATCH
    }
}
