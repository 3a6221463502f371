//! Minimum number of operations and bytes of a workload, computed from the shape.
//!
//! A multiply-add counts as 2 operations. A linear layer of `n` outputs and `k` inputs takes `2·n·k` per token. In each
//! layer, attention takes `4·H·E` per visible query-key pair (a sliding window hides earlier keys): one product for the score, one for the value. The
//! backward pass takes twice the operations of the forward pass. In generation, the last layer only needs the keys and
//! values of prompt tokens before the last one. Not counted: recomputation (scores and logits in the backward pass,
//! activation checkpointing), elementwise operations, and the optimiser.

use rloom_model::{ActivationCheckpointing, ModelConfig};

use super::shape::{DecodeBatch, GrpoBatch, TrainBatch};

/// Number of operations by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Operations {
    /// Linear layers, including the head.
    pub(super) linear: u64,
    pub(super) attention: u64,
}

impl Operations {
    /// A forward pass over `tokens` tokens with the logits of `scored` tokens, and `pairs` visible query-key pairs in a
    /// layer with a given window.
    fn forward(
        config: &ModelConfig,
        tokens: usize,
        pairs: impl Fn(Option<usize>) -> usize,
        scored: usize,
    ) -> Self {
        let width = config.heads * config.head_dim;
        let pairs: usize = config.windows.iter().map(|&window| pairs(window)).sum();
        Self {
            linear: 2 * (tokens as u64 * layer_weights(config) + scored as u64 * head_weights(config)),
            attention: 4 * (width * pairs) as u64,
        }
    }

    fn times(self, factor: u64) -> Self {
        Self { linear: self.linear * factor, attention: self.attention * factor }
    }

    fn and(self, other: Self) -> Self {
        Self { linear: self.linear + other.linear, attention: self.attention + other.attention }
    }

    /// A training step that predicts every token but the first of each sequence.
    pub(super) fn train(config: &ModelConfig, batch: TrainBatch) -> Self {
        let TrainBatch { sequences, length } = batch;
        let pairs = |window| sequences * pairs(length, window);
        Self::forward(config, sequences * length, pairs, sequences * (length - 1)).times(3)
    }

    /// Completing prompts. The last sampled token is not fed back into the model.
    pub(super) fn decode(config: &ModelConfig, batch: DecodeBatch) -> Self {
        let DecodeBatch { sequences, prompt, new } = batch;
        let tokens = prompt + new - 1;
        let pairs = |window| sequences * pairs(tokens, window);
        Self::forward(config, sequences * tokens, pairs, sequences * new)
            .without_prompt_outputs(config, sequences, prompt)
    }

    /// Subtracts the work of the last layer on prompt tokens whose logits are not needed.
    fn without_prompt_outputs(self, config: &ModelConfig, prompts: usize, prompt: usize) -> Self {
        let before_last = prompt.saturating_sub(1);
        let keys_and_values = 2 * config.kv_heads * config.head_dim * config.hidden_size;
        let rest = layer_weights(config) / config.layers as u64 - keys_and_values as u64;
        let width = config.heads * config.head_dim;
        let pairs = prompts * pairs(before_last, config.windows[config.layers - 1]);
        Self {
            linear: self.linear - 2 * (prompts * before_last) as u64 * rest,
            attention: self.attention - 4 * (width * pairs) as u64,
        }
    }

    /// A GRPO step. Each prompt is computed once per group, both in the rollout and in training.
    pub(super) fn grpo(config: &ModelConfig, batch: GrpoBatch) -> Self {
        let GrpoBatch { prompts, samples, prompt, new } = batch;
        let completions = prompts * samples;
        // Forward pass over the shared prompts and `tokens` tokens of each completion.
        let shared = |tokens: usize| {
            let pairs = |window| {
                let shared = pairs(prompt, window);
                prompts * shared + completions * (pairs(prompt + tokens, window) - shared)
            };
            Self::forward(config, prompts * prompt + completions * tokens, pairs, completions * new)
        };
        shared(new - 1).without_prompt_outputs(config, prompts, prompt).and(shared(new).times(3))
    }

    pub(super) fn all(self) -> u64 {
        self.linear + self.attention
    }
}

/// Bytes that decoding must read: all weights of `weight_bytes` once per step (the first step processes all prompts), and
/// the keys and values of each sequence once per token after the first.
pub(super) fn decode_bytes(config: &ModelConfig, batch: DecodeBatch, weight_bytes: usize) -> u64 {
    let DecodeBatch { sequences, prompt, new } = batch;
    let weights = (layer_weights(config) + head_weights(config)) * weight_bytes as u64;
    let seen = |window: &Option<usize>| pairs(prompt + new - 1, *window) - pairs(prompt, *window);
    let seen: usize = config.windows.iter().map(seen).sum();
    let layer_bytes = config.kv_bytes_per_token() / config.layers as u64;
    new as u64 * weights + (sequences * seen) as u64 * layer_bytes
}

/// Name, outputs and inputs of the linear layers of a decoder layer.
pub(super) fn linears(config: &ModelConfig) -> [(&'static str, usize, usize); 4] {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (wide, narrow) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    [("qkv", wide + 2 * narrow, d), ("output", d, wide), ("gate_up", 2 * f, d), ("down", d, f)]
}

/// Number of weights in the matrices of all decoder layers.
fn layer_weights(config: &ModelConfig) -> u64 {
    let layer: usize = linears(config).iter().map(|(_, n, k)| n * k).sum();
    (layer * config.layers) as u64
}

/// Number of weights of the output head.
fn head_weights(config: &ModelConfig) -> u64 {
    (config.vocab_size * config.hidden_size) as u64
}

/// Number of query-key pairs of causal attention over `n` tokens: `1 + 2 + … + n`, each at most the window.
pub(super) fn pairs(n: usize, window: Option<usize>) -> usize {
    let growing = window.map_or(n, |window| n.min(window));
    growing * (growing + 1) / 2 + (n - growing) * growing
}

/// Bytes that a training step moves if nothing stays in the caches: each weight in the forward pass (packed) and in the
/// backward pass (in rows), its gradient (written, read for its norm and by the optimizer), the optimizer's state (read and written), the packed
/// weight that it writes, and the activations that the forward pass keeps for the backward pass.
pub(super) fn training_traffic(config: &ModelConfig, batch: TrainBatch) -> u64 {
    step_traffic(config, batch.sequences * batch.length)
}

fn step_traffic(config: &ModelConfig, tokens: usize) -> u64 {
    let each = 2 * config.dtype.bytes() + (1 + 3 + 2 + 4) * size_of::<f32>();
    let kept = config.training_bytes_per_token(ActivationCheckpointing::None);
    config.parameter_count() * each as u64 + 2 * tokens as u64 * kept
}

/// The same for a GRPO step: the reads of its decoding, and a training step on prompts that are shared.
pub(super) fn grpo_traffic(config: &ModelConfig, batch: GrpoBatch) -> u64 {
    let GrpoBatch { prompts, samples, prompt, new } = batch;
    let rollout =
        decode_bytes(config, DecodeBatch { sequences: prompts * samples, prompt, new }, config.dtype.bytes());
    rollout + step_traffic(config, prompts * (prompt + samples * new))
}

#[cfg(test)]
mod tests {
    use rloom_model::Dtype;

    use super::super::shape::Shape;
    use super::*;

    fn s() -> Shape {
        Shape::named("S", Dtype::F32).unwrap()
    }

    /// By hand: 3,084,544 parameters move 48 bytes each in f32 and 44 in bf16, and each of the 4,096 tokens moves its
    /// activations twice.
    #[test]
    fn training_traffic_counts_every_transfer_once() {
        let shape = s();
        let tokens = 2 * 4096;
        let kept = shape.config.training_bytes_per_token(ActivationCheckpointing::None);
        assert_eq!(training_traffic(&shape.config, shape.train), 3_084_544 * 48 + tokens * kept);
        let bf16 = Shape::named("S", Dtype::Bf16).unwrap();
        let kept = bf16.config.training_bytes_per_token(ActivationCheckpointing::None);
        assert_eq!(training_traffic(&bf16.config, bf16.train), 3_084_544 * 44 + tokens * kept);
        // 16 prompts of 16 tokens and 128 completions of 64 tokens.
        let kept = shape.config.training_bytes_per_token(ActivationCheckpointing::None);
        let decode = decode_bytes(&shape.config, DecodeBatch { sequences: 128, prompt: 16, new: 64 }, 4);
        let step = 3_084_544 * 48 + 2 * (256 + 8192) * kept;
        assert_eq!(grpo_traffic(&shape.config, shape.grpo), decode + step);
    }

    /// By hand: a layer has 512·256 + 256·256 + 1408·256 + 256·704 = 737,280 weights, the head 512·256 = 131,072.
    #[test]
    fn a_training_step_of_shape_s() {
        let s = s();
        let count = Operations::train(&s.config, s.train);
        assert_eq!(count.linear, 3 * 2 * (4096 * 4 * 737_280 + 4064 * 131_072));
        assert!((count.linear as f64 / 1e9 - 75.7).abs() < 0.05);
        // 32 sequences × 128·129/2 pairs × 4 layers × 256 wide × 4, forward and twice that backward.
        assert_eq!(count.attention, 3 * 32 * 8256 * 4 * 256 * 4);
        assert_eq!(count.all(), count.linear + count.attention);
    }

    #[test]
    fn decoding_shape_s() {
        let s = s();
        let count = Operations::decode(&s.config, s.decode);
        // In the last layer, 15 tokens of a prompt only use the 65,536 weights of keys and values and attend to
        // nothing.
        assert_eq!(count.linear, 2 * 64 * (79 * 4 * 737_280 - 15 * (737_280 - 65_536) + 64 * 131_072));
        assert_eq!(count.attention, 4 * 256 * 64 * (4 * (79 * 80 / 2) - 15 * 16 / 2));
        // Steps attend to 17, 18 … 79 tokens; the keys and values of one take 2·4·4·32 floats.
        let seen: u64 = (17..=79).sum();
        let bytes = decode_bytes(&s.config, s.decode, 4);
        assert_eq!(bytes, 64 * 4 * (4 * 737_280 + 131_072) + 64 * seen * 4096);
        let bf16 = Shape::named("S", Dtype::Bf16).unwrap();
        assert_eq!(decode_bytes(&bf16.config, bf16.decode, 2) * 2, bytes);
        let weights = 64 * (4 * 737_280 + 131_072);
        assert_eq!(decode_bytes(&s.config, s.decode, 1), bytes - 3 * weights);
    }

    /// With windows of 10 tokens in two of four layers, by hand.
    #[test]
    fn a_window_hides_earlier_keys() {
        let s = s();
        let mut config = s.config.clone();
        config.windows[1] = Some(10);
        config.windows[3] = Some(10);
        let of_window = |n: usize| 55 + (n - 10) * 10;
        let train = Operations::train(&config, s.train);
        assert_eq!(train.attention, 3 * 4 * 256 * 32 * 2 * (8256 + of_window(128)) as u64);
        assert_eq!(train.linear, Operations::train(&s.config, s.train).linear);
        let decode = Operations::decode(&config, s.decode);
        let both = 2 * (79 * 80 / 2 + of_window(79)) - of_window(15);
        assert_eq!(decode.attention, 4 * 256 * 64 * both as u64);
        let seen: u64 = (17..=79).sum();
        let bytes = decode_bytes(&s.config, s.decode, 4) - decode_bytes(&config, s.decode, 4);
        assert_eq!(bytes, 64 * (seen - 63 * 10) * 2048);
        let grpo = Operations::grpo(&config, GrpoBatch { samples: 1, ..s.grpo });
        let rollout = Operations::decode(&config, DecodeBatch { sequences: 16, prompt: 16, new: 64 });
        assert_eq!(grpo.attention - rollout.attention, 3 * 4 * 256 * 16 * 2 * (3240 + of_window(80)) as u64);
    }

    /// With one sample per prompt, training equals that of as many sequences without predicting the prompts.
    #[test]
    fn a_grpo_step_computes_each_prompt_once() {
        let s = s();
        let one = GrpoBatch { samples: 1, ..s.grpo };
        let decode = DecodeBatch { sequences: 16, prompt: 16, new: 64 };
        let rollout = Operations::decode(&s.config, decode);
        let all = |n: usize| move |_: Option<usize>| 16 * n * (n + 1) / 2;
        let training = Operations::forward(&s.config, 16 * 80, all(80), 16 * 64).times(3);
        assert_eq!(Operations::grpo(&s.config, one), rollout.and(training));
        let two = Operations::grpo(&s.config, GrpoBatch { samples: 2, ..s.grpo });
        let prompts = Operations::forward(&s.config, 16 * 16, all(16), 0);
        let shared = prompts.without_prompt_outputs(&s.config, 16, 16).and(prompts.times(3));
        assert_eq!(two.and(shared), Operations::grpo(&s.config, one).times(2));
    }
}
