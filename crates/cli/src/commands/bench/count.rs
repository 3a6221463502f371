//! Operations and bytes that a work cannot do without, counted from the shape.
//!
//! A multiply-add is 2 operations. A linear layer of `n` outputs and `k` inputs takes `2·n·k` for a token; attention
//! takes `4·H·E` for a query and a key that it sees (one product for the score, one for the value) in each layer. The
//! backward pass takes twice the forward's: by the inputs and by the weights, and of attention by its four inputs. In
//! generating, the last layer needs no more than keys and values of a prompt's tokens before its last one. What
//! is not counted: what is computed again (scores and logits in the backward pass, activations that were not kept),
//! elementwise operations, the optimiser.

use rloom_model::{Dtype, ModelConfig};

use super::shape::{DecodeBatch, GrpoBatch, TrainBatch};

/// Operations, by what does them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Operations {
    /// Of linear layers, the head included.
    pub(super) linear: u64,
    pub(super) attention: u64,
}

impl Operations {
    /// A forward pass over `tokens` tokens that see `pairs` keys in all (themselves included), with the logits of `scored`.
    fn forward(config: &ModelConfig, tokens: usize, pairs: usize, scored: usize) -> Self {
        let width = config.heads * config.head_dim;
        Self {
            linear: 2 * (tokens as u64 * layer_weights(config) + scored as u64 * head_weights(config)),
            attention: 4 * (width * pairs * config.layers) as u64,
        }
    }

    fn times(self, factor: u64) -> Self {
        Self { linear: self.linear * factor, attention: self.attention * factor }
    }

    fn and(self, other: Self) -> Self {
        Self { linear: self.linear + other.linear, attention: self.attention + other.attention }
    }

    /// Of a training step in which every token but the first of each sequence is predicted.
    pub(super) fn train(config: &ModelConfig, batch: TrainBatch) -> Self {
        let TrainBatch { sequences, length } = batch;
        let pairs = sequences * triangle(length);
        Self::forward(config, sequences * length, pairs, sequences * (length - 1)).times(3)
    }

    /// Of completing prompts. The last token is chosen and goes through the model no more.
    pub(super) fn decode(config: &ModelConfig, batch: DecodeBatch) -> Self {
        let DecodeBatch { sequences, prompt, new } = batch;
        let tokens = prompt + new - 1;
        Self::forward(config, sequences * tokens, sequences * triangle(tokens), sequences * new)
            .after_prompts(config, sequences, prompt)
    }

    /// Of generating: without what the last layer does with tokens of prompts after which nothing is drawn.
    fn after_prompts(self, config: &ModelConfig, prompts: usize, prompt: usize) -> Self {
        let before_last = prompt.saturating_sub(1);
        let keys_and_values = 2 * config.kv_heads * config.head_dim * config.hidden_size;
        let rest = layer_weights(config) / config.layers as u64 - keys_and_values as u64;
        let width = config.heads * config.head_dim;
        Self {
            linear: self.linear - 2 * (prompts * before_last) as u64 * rest,
            attention: self.attention - 4 * (width * prompts * triangle(before_last)) as u64,
        }
    }

    /// Of a step of GRPO: each prompt is computed once for its group, in the rollout and in training.
    pub(super) fn grpo(config: &ModelConfig, batch: GrpoBatch) -> Self {
        let GrpoBatch { prompts, samples, prompt, new } = batch;
        let completions = prompts * samples;
        // Tokens of a completion that go through the model, on top of the shared prompt.
        let shared = |tokens: usize| {
            let pairs = prompts * triangle(prompt) + completions * (tokens * prompt + triangle(tokens));
            Self::forward(config, prompts * prompt + completions * tokens, pairs, completions * new)
        };
        shared(new - 1).after_prompts(config, prompts, prompt).and(shared(new).times(3))
    }

    pub(super) fn all(self) -> u64 {
        self.linear + self.attention
    }
}

/// Bytes that decoding must read: the weights of every product once for each of its steps, the first of which takes all
/// prompts, and each sequence's keys and values once for each of its tokens but the first.
pub(super) fn decode_bytes(config: &ModelConfig, batch: DecodeBatch) -> u64 {
    let DecodeBatch { sequences, prompt, new } = batch;
    let weights = (layer_weights(config) + head_weights(config)) * config.dtype.bytes() as u64;
    let seen: usize = (1..new).map(|token| prompt + token).sum();
    new as u64 * weights + (sequences * seen) as u64 * config.kv_bytes_per_token()
}

/// The linear layers of a decoder layer: name, outputs, inputs.
pub(super) fn linears(config: &ModelConfig) -> [(&'static str, usize, usize); 4] {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (wide, narrow) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    [("qkv", wide + 2 * narrow, d), ("output", d, wide), ("gate_up", 2 * f, d), ("down", d, f)]
}

/// Numbers in the matrices of all decoder layers.
fn layer_weights(config: &ModelConfig) -> u64 {
    let layer: usize = linears(config).iter().map(|(_, n, k)| n * k).sum();
    (layer * config.layers) as u64
}

/// Numbers in the matrix that gives the logits.
fn head_weights(config: &ModelConfig) -> u64 {
    (config.vocab_size * config.hidden_size) as u64
}

/// `1 + 2 + … + n`: keys that the tokens of a sequence see.
pub(super) fn triangle(n: usize) -> usize {
    n * (n + 1) / 2
}

/// Bytes that training holds whatever the batch: master weights, gradients, two moments, and the form that products
/// read.
pub(super) fn training_bytes(config: &ModelConfig) -> u64 {
    let each = 4 * size_of::<f32>() + if config.dtype == Dtype::F32 { 4 } else { 2 };
    config.parameter_count() * each as u64
}

#[cfg(test)]
mod tests {
    use super::super::shape::Shape;
    use super::*;

    fn s() -> Shape {
        Shape::named("S", Dtype::F32).unwrap()
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
        // In the last layer 15 tokens of a prompt need 65,536 weights, those of keys and values, and see no keys.
        assert_eq!(count.linear, 2 * 64 * (79 * 4 * 737_280 - 15 * (737_280 - 65_536) + 64 * 131_072));
        assert_eq!(count.attention, 4 * 256 * 64 * (4 * (79 * 80 / 2) - 15 * 16 / 2));
        // Steps see 17, 18 … 79 tokens; one takes 2·4·4·32 floats of keys and values.
        let seen: u64 = (17..=79).sum();
        let bytes = decode_bytes(&s.config, s.decode);
        assert_eq!(bytes, 64 * 4 * (4 * 737_280 + 131_072) + 64 * seen * 4096);
        let bf16 = Shape::named("S", Dtype::Bf16).unwrap();
        assert_eq!(decode_bytes(&bf16.config, bf16.decode) * 2, bytes);
    }

    /// With one sample of each prompt, training is that of as many sequences whose prompts are not predicted.
    #[test]
    fn a_step_of_grpo_computes_a_prompt_once() {
        let s = s();
        let one = GrpoBatch { samples: 1, ..s.grpo };
        let decode = DecodeBatch { sequences: 16, prompt: 16, new: 64 };
        let rollout = Operations::decode(&s.config, decode);
        let training = Operations::forward(&s.config, 16 * 80, 16 * triangle(80), 16 * 64).times(3);
        assert_eq!(Operations::grpo(&s.config, one), rollout.and(training));
        let two = Operations::grpo(&s.config, GrpoBatch { samples: 2, ..s.grpo });
        let prompts = Operations::forward(&s.config, 16 * 16, 16 * triangle(16), 0);
        let shared = prompts.after_prompts(&s.config, 16, 16).and(prompts.times(3));
        assert_eq!(two.and(shared), Operations::grpo(&s.config, one).times(2));
    }
}
