//! Dtype of matrix products. A property of a run, not of a model folder.

use rloom_ops::{Ctx, Isa};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Format of the weights and inputs of matrix products, including attention's probabilities and their derivatives.
/// Sums, the residual stream, norms, softmax, logits, losses, all weight gradients and the master weights are `f32` in
/// both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32 bits: the reference.
    #[default]
    F32,
    /// 16 bits with the exponent range of `f32` and 8 significant bits: half the memory traffic, and the format of the
    /// processors' matrix instructions.
    Bf16,
}

impl Dtype {
    /// Name, as spelled in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Name of the numeric path that products take in a context. Runs with equal inputs and equal numeric paths are
    /// bitwise identical; in f32 it is the instruction set, in bf16 the method of summing products.
    pub fn numeric_path(self, ctx: &Ctx) -> &'static str {
        match (self, ctx.isa()) {
            // Both add instructions for bf16 products only.
            (Self::F32, Isa::Avx512Bf16 | Isa::Amx) => Isa::Avx512.name(),
            (Self::F32, isa) => isa.name(),
            (Self::Bf16, _) if ctx.uses_tiles() => "bf16 tiles",
            (Self::Bf16, _) => "bf16 dot pairs",
        }
    }

    /// Size of a number in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Activations that the backward pass recomputes instead of keeping them (Chen et al., 2016, arXiv:1604.06174). Trades
/// compute for memory; scores and gradients are bitwise identical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationCheckpointing {
    /// Recomputes only norms and SwiGLU's product, which are cheaper to compute than to keep.
    #[default]
    None,
    /// Also recomputes the attention: projections, scores and softmax.
    Attention,
    /// Keeps only each layer's input.
    Block,
}
