//! Buffers of a training step that are in use at the same time, by width.
//!
//! Buffers of one width are reused for each other ([`BufPool`](crate::buf_pool::BufPool)), so that a step takes the most buffers in
//! use of each width, and not the most bytes in use.

use std::collections::BTreeMap;

use crate::adapter::{LoraConfig, Projection};
use crate::{ActivationCheckpointing, ModelConfig};

/// Bytes per token of the buffers that are in use at some point of a training step.
type Buffers = Vec<usize>;

/// One number per token.
const SCALE: usize = size_of::<f32>();

/// Widths of the buffers of a step, in bytes per token. `f32` buffers are wide, those in the model's dtype narrow.
pub(super) struct Widths {
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
    /// Outputs of the value head.
    labels: usize,
    language: bool,
    adapter: Option<Adapter>,
}

/// Widths of an adapter's buffers.
struct Adapter {
    /// Ranks of the additions to the products, and to the language head.
    ranks: [usize; 4],
    head: usize,
    /// Inputs are masked.
    is_masked: bool,
    /// Bytes of a number in the model's dtype.
    narrow: usize,
}

impl Widths {
    pub(super) fn of(config: &ModelConfig, adapter: Option<(&LoraConfig, bool)>) -> Self {
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
            labels: config.output_heads.labels() * wide,
            language: config.output_heads.language(),
            adapter: adapter.map(|(lora, is_masked)| Adapter {
                ranks: lora.ranks(),
                head: lora.head_rank(),
                is_masked,
                narrow,
            }),
        }
    }

    /// Width of each buffer of a decoding step.
    pub(super) fn decoding(&self) -> Buffers {
        let [_, queries] = self.queries;
        let [_, keys] = self.keys;
        vec![
            self.stream,
            self.stream,
            SCALE,
            // Also used to select queries.
            self.normed.max(queries),
            queries,
            keys,
            keys,
            queries,
            self.hidden,
        ]
    }

    /// Number of buffers by width: the most that are in use at a point of a step of `layers` layers.
    pub(super) fn most(
        &self,
        layers: usize,
        checkpointing: ActivationCheckpointing,
    ) -> BTreeMap<usize, usize> {
        let kept = self.kept(checkpointing);
        let mut most: BTreeMap<usize, usize> = BTreeMap::new();
        let mut at = |layers: usize, point: Buffers| {
            let mut used: BTreeMap<usize, usize> = BTreeMap::new();
            for bytes in point {
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
        let layer = self.forward(checkpointing).into_iter().chain(self.backward(checkpointing));
        layer.for_each(|point| at(layers.saturating_sub(1), point));
        self.head_points().into_iter().for_each(|point| at(layers, point));
        most
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
    fn head_points(&self) -> Vec<Buffers> {
        let mut rows = vec![self.stream, self.normed, SCALE];
        let value = self.labels > 0;
        let mut points = vec![[vec![self.stream], rows.clone()].concat()];
        if value {
            points.push([vec![self.stream, self.labels], rows.clone()].concat());
            // The last row of each segment.
            rows.extend([self.stream, self.normed, SCALE]);
            points.push([vec![self.stream, self.labels], rows.clone()].concat());
        }
        // Derivatives of the stream before and after the norm.
        let derivatives = [vec![self.stream, self.stream], rows.clone()].concat();
        if let Some(adapter) = self.adapter.as_ref().filter(|adapter| self.language && adapter.head > 0) {
            let masked = if adapter.is_masked { self.normed } else { 0 };
            points.push([derivatives.clone(), vec![adapter.head * SCALE, masked]].concat());
        }
        points.push(derivatives.clone());
        // The backward pass of the norm has freed the normalised rows.
        let mut norm = derivatives;
        remove(&mut norm, self.normed);
        norm.push(self.stream);
        points.push(norm);
        if value {
            // The derivatives of the scored rows, and the last rows with theirs, before and after the norm's backward pass.
            points.push([vec![self.stream; 5], vec![self.normed, SCALE]].concat());
            points.push([vec![self.stream; 6], vec![SCALE]].concat());
        }
        points
    }

    /// Derivatives of an addition's inner product while a product's gradients are computed, and its masked input.
    fn addition(&self, projection: Projection, input: usize) -> [Buffers; 2] {
        let Some(adapter) = &self.adapter else { return [Vec::new(), Vec::new()] };
        let rank = adapter.ranks[projection as usize];
        if rank == 0 {
            return [Vec::new(), Vec::new()];
        }
        let masked = if adapter.is_masked { input } else { 0 };
        [vec![rank * SCALE], vec![rank * SCALE, rank * adapter.narrow, masked]]
    }

    /// Points of a layer's backward pass, with its input and the derivative of its output.
    fn backward(&self, checkpointing: ActivationCheckpointing) -> Vec<Buffers> {
        let streams = vec![self.stream; 2];
        let kept_attention = match checkpointing {
            ActivationCheckpointing::Attention => Vec::new(),
            _ => self.attention(),
        };
        let mut points = Vec::new();
        if checkpointing != ActivationCheckpointing::None {
            points.push([streams.clone(), self.attending()].concat());
        }
        let mlp = [streams.clone(), kept_attention, self.mlp()].concat();
        points.extend(self.mlp_points(&mlp));
        points.extend(self.attention_points(&streams));
        points
    }

    /// Points of the feed-forward layer's backward pass.
    fn mlp_points(&self, before: &[usize]) -> Vec<Buffers> {
        let [down, down_weight] = self.addition(Projection::Down, self.hidden);
        let [up, up_weight] = self.addition(Projection::GateUp, self.normed);
        let with = |buffers: &[&[usize]]| [&[before], buffers].concat().concat();
        vec![
            with(&[&[self.hidden], &down]),
            with(&[&[self.hidden], &down_weight]),
            with(&[&[self.normed, SCALE], &up_weight]),
            with(&[&[SCALE, self.stream], &up]),
        ]
    }

    /// Points of attention's backward pass: its derivatives, those of QK-norm, and the product with the projection.
    fn attention_points(&self, streams: &[usize]) -> Vec<Buffers> {
        let ([wide_queries, queries], [wide_keys, keys]) = (self.queries, self.keys);
        let [output, output_weight] = self.addition(Projection::Output, queries);
        let [qkv, qkv_weight] = self.addition(Projection::Qkv, self.normed);
        let attention = [streams, &self.attention()].concat();
        let mut points = vec![
            [&attention[..], &output_weight].concat(),
            [&attention[..], &output, &[wide_queries]].concat(),
        ];
        let derivatives = [wide_queries, wide_queries, wide_keys, wide_keys];
        let mut inner = [&attention[..], &derivatives].concat();
        if self.qk_norm {
            inner.extend([queries, keys, self.heads, self.kv_heads]);
        }
        points.push(inner.clone());
        let projected = queries + 2 * keys;
        let mut joined = [streams, &derivatives].concat();
        if self.qk_norm {
            // The attention result and its log-sum-exp are no longer in use.
            let mut norms = inner;
            remove(&mut norms, queries);
            remove(&mut norms, self.heads);
            points.push([norms, vec![wide_keys]].concat());
            joined.push(wide_keys);
        } else {
            remove(&mut joined, wide_queries);
        }
        points.push([&joined[..], &[projected]].concat());
        points.push([streams, &[projected, self.normed, SCALE], &qkv_weight].concat());
        points.push([streams, &[projected, SCALE, self.stream], &qkv].concat());
        points
    }
}

/// Removes a buffer of this width.
fn remove(buffers: &mut Buffers, width: usize) {
    if let Some(place) = buffers.iter().position(|&bytes| bytes == width) {
        buffers.swap_remove(place);
    }
}
