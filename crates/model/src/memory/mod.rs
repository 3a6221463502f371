//! Memory of training and of decoding by formula: every buffer that grows with the model, the batch or the number of threads.
//!
//! A formula is an upper limit: buffers are counted at the point of a step where most are in use, whole pages of those that are mapped.

mod activations;
mod state;

use rloom_ops::{Bf16, Isa, Order, ScratchBytes, ScratchShape, mapped_bytes};

use crate::adapter::{LoraConfig, Projection};
use crate::model::attention_shape;
use crate::{ActivationCheckpointing, Dtype, ModelConfig};
use activations::Widths;

/// Numbers per token besides the activations, in bytes: token, position, targets, scores and their derivatives, in the engine
/// and in the model.
const LISTS: u64 = 160;

/// A training step whose memory is estimated.
#[derive(Debug, Clone, Copy)]
pub struct StepShape<'a> {
    /// Tokens of the largest micro-batch.
    pub tokens: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Activations that are recomputed.
    pub checkpointing: ActivationCheckpointing,
    /// The adapter that is trained, and whether its inputs are masked; all weights without one.
    pub adapter: Option<(&'a LoraConfig, bool)>,
}

impl ModelConfig {
    /// Activations and derivatives of a training step, in bytes.
    pub fn activation_bytes(&self, step: StepShape<'_>) -> u64 {
        let of =
            |(width, count): (usize, usize)| count as u64 * mapped_bytes(width as u64 * step.tokens as u64);
        Widths::of(self, step.adapter).most(self.layers, step.checkpointing).into_iter().map(of).sum()
    }

    /// Activations and derivatives of a training step of all weights per token, in bytes.
    pub fn training_bytes_per_token(&self, checkpointing: ActivationCheckpointing) -> u64 {
        let most = Widths::of(self, None).most(self.layers, checkpointing);
        most.into_iter().map(|(width, count)| (count * width) as u64).sum()
    }

    /// Scratch memory of a training step with `threads` threads and bf16 products in this order, and its lists of numbers per
    /// token, in bytes. Attention's scratch memory grows with the longest sequence.
    pub fn training_scratch_bytes(&self, isa: Isa, order: Order, threads: usize, step: StepShape<'_>) -> u64 {
        let shape = self.scratch_shape();
        let ScratchBytes { thread, shared } = match self.dtype {
            Dtype::F32 => shape.training::<f32>(isa, order, step.tokens, step.longest),
            Dtype::Bf16 => shape.training::<Bf16>(isa, order, step.tokens, step.longest),
        };
        let per_token = LISTS + step.adapter.map_or(0, |adapter| self.adapter_scratch(adapter));
        threads as u64 * thread as u64 + shared as u64 + step.tokens as u64 * per_token + self.room(step)
    }

    /// Room for a matrix of a frozen bf16 base in rows, for the backward pass.
    fn room(&self, step: StepShape<'_>) -> u64 {
        let largest = Projection::ALL.map(|projection| projection.shape(self).iter().product::<usize>());
        let is_packed = step.adapter.is_some() && self.dtype == Dtype::Bf16;
        let elements = largest.into_iter().max().filter(|_| is_packed).unwrap_or(0);
        mapped_bytes((elements * size_of::<Bf16>()) as u64)
    }

    /// Scratch memory of an adapter per token: the input of the largest addition, masked, and the product with its first factor.
    fn adapter_scratch(&self, (lora, is_masked): (&LoraConfig, bool)) -> u64 {
        let rank = lora.ranks().into_iter().max().unwrap_or(0).max(lora.head_rank());
        let inputs = Projection::ALL.map(|projection| projection.shape(self)[1]);
        let masked = inputs.into_iter().max().filter(|_| is_masked).unwrap_or(0);
        (rank * self.dtype.bytes() + masked * size_of::<f32>()) as u64
    }

    /// Memory of decoding steps of at most `rows` rows with `logits` of them requested, which see at most `longest` keys, with
    /// `threads` threads, in bytes. The key-value cache comes on top.
    pub fn decoding_bytes(&self, isa: Isa, threads: usize, [rows, logits, longest]: [usize; 3]) -> u64 {
        let shape = self.scratch_shape();
        let ScratchBytes { thread, shared } = match self.dtype {
            Dtype::F32 => shape.decoding::<f32>(isa, longest),
            Dtype::Bf16 => shape.decoding::<Bf16>(isa, longest),
        };
        let buffers: u64 = Widths::of(self, None)
            .decoding()
            .into_iter()
            .map(|width| mapped_bytes(width as u64 * rows as u64))
            .sum();
        let logits = mapped_bytes(logits as u64 * self.vocab_size as u64 * size_of::<f32>() as u64);
        buffers + logits + rows as u64 * LISTS + threads as u64 * thread as u64 + shared as u64
    }

    /// Tables of cosines and sines for sequences of `longest` tokens, in bytes.
    pub fn rope_bytes(&self, longest: usize) -> u64 {
        let positions = crate::layer::rope_positions(self, longest) as u64;
        positions * self.head_dim as u64 * size_of::<f32>() as u64
    }

    fn scratch_shape(&self) -> ScratchShape {
        // A layer without a window sees most keys.
        let reach = |layer: &usize| self.windows.get(*layer).copied().flatten().unwrap_or(usize::MAX);
        let layer = (0..self.windows.len()).max_by_key(reach).unwrap_or(0);
        ScratchShape {
            attention: attention_shape(self, layer),
            d: self.hidden_size,
            f: self.intermediate_size,
            v: self.vocab_size,
        }
    }
}
