//! Memory by formula: of a model that this process trains, and of the rollout engine.

use rloom_engine::{RolloutError, RolloutSettings};
use rloom_model::{LoraConfig, ModelConfig, MomentFormat};
use rloom_ops::{Isa, mapped_bytes};
use rloom_run::assembly;

use crate::progress::numbers::bytes;

/// Memory of what is trained, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trained {
    /// Weights in rows and packed; of an adapter, those of its frozen base too.
    pub(crate) weights: u64,
    pub(crate) gradients: u64,
    pub(crate) moments: u64,
    /// What another published version takes.
    pub(crate) version: u64,
}

impl Trained {
    /// All weights of a model, or an adapter over it, with tables for sequences of `longest` tokens.
    pub(crate) fn of(
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        format: MomentFormat,
        longest: usize,
    ) -> Self {
        // The trainer and the sampler have one each.
        let tables = 2 * model.rope_bytes(longest);
        match adapter {
            None => Self {
                weights: model.weight_bytes() + model.packed_bytes() + tables,
                gradients: model.weight_bytes(),
                moments: model.moment_bytes(format),
                version: model.published_bytes() + tables / 2,
            },
            Some(lora) => {
                let weights = model.adapter_weight_bytes(lora);
                Self {
                    weights: model.frozen_bytes() + weights + tables,
                    gradients: model.adapter_gradient_bytes(lora),
                    moments: model.adapter_moment_bytes(lora, format),
                    version: weights,
                }
            }
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.weights + self.gradients + self.moments
    }
}

/// What the rollout engine computes at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rollouts<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) settings: &'a RolloutSettings,
    /// Threads of the run.
    pub(crate) threads: usize,
}

/// Sequences that the engine holds with one version of the weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequences {
    /// Groups that share a prompt.
    pub(crate) groups: u64,
    pub(crate) samples: u64,
    /// Tokens of a prompt, and of a completion.
    pub(crate) prompt: usize,
    pub(crate) new: usize,
}

impl Rollouts<'_> {
    /// Lanes, and their threads in all.
    fn lanes(&self) -> (usize, usize) {
        let threads = if self.settings.threads == 0 { self.threads } else { self.settings.threads };
        (assembly::lanes(self.model, threads, self.settings), threads)
    }

    /// Key-value cache in bytes: when it is full, or with all of these sequences. Lanes compute a shared prompt once each.
    pub(crate) fn cache(&self, sequences: Option<Sequences>) -> Result<u64, RolloutError> {
        let (lanes, _) = self.lanes();
        let shape = assembly::cache_shape(self.model);
        let full = shape.bytes(lanes, self.settings)?;
        let Some(Sequences { groups, samples, prompt, new }) = sequences else { return Ok(full) };
        let blocks = |tokens: usize| shape.blocks(tokens) as u64;
        // A completion begins in a copy of the prompt's last block.
        let group = samples.min(lanes as u64) * blocks(prompt) + samples * (blocks(new) + 1);
        let block = shape.token_bytes * shape.block_tokens as u64;
        // The keys and the values of a layer are each in memory of their own, which is taken in whole pages.
        let layers = (2 * self.model.layers * lanes) as u64;
        let page =
            mapped_bytes(full / layers.max(1)) - mapped_bytes(full / layers.max(1)).saturating_sub(2 << 20);
        Ok(full.min(groups.saturating_mul(group).saturating_mul(block).saturating_add(layers * page)))
    }

    /// Buffers of the engine's steps in bytes, with a row of logits for each sequence.
    pub(crate) fn steps(&self, isa: Isa) -> u64 {
        let (lanes, threads) = self.lanes();
        let RolloutSettings { max_batch, prefill_chunk, .. } = *self.settings;
        let shape = [max_batch + prefill_chunk, max_batch, self.model.max_positions];
        let lane_threads = (threads / lanes.max(1)).max(1);
        lanes as u64 * self.model.decoding_bytes(isa, lane_threads, shape)
    }

    /// Another copy of the weights in 8 bits, if completions are sampled from one.
    pub(crate) fn quantized(&self) -> u64 {
        if self.settings.quantize.is_some() { self.model.parameter_count() } else { 0 }
    }
}

/// Text of a list of parts that take memory.
pub(crate) fn parts(parts: &[(&str, u64)]) -> String {
    let parts: Vec<String> =
        parts.iter().filter(|(_, b)| *b > 0).map(|(name, b)| format!("{name} {}", bytes(*b))).collect();
    parts.join(", ")
}
