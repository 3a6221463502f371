//! What a model computes in, and what it keeps between forward and backward. Both are properties of a run, not of a
//! model folder.

use serde::{Deserialize, Serialize};

/// The format of the weights and inputs of matrix products, attention's probabilities and derivatives among them. Their
/// sums, the residual stream, norms, softmax, logits, losses and all gradients of weights are `f32` in both, and so are the
/// weights that the optimiser changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    /// 32 bits: the reference.
    #[default]
    F32,
    /// 16 bits with the exponents of `f32` and 8 significant bits: half of the memory traffic, and the format of the
    /// processors' matrix instructions.
    Bf16,
}

impl Compute {
    /// As settings spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// What the backward pass computes again instead of keeping it (Chen et al., 2016, arXiv:1604.06174): less memory for
/// more arithmetic. Scores and gradients are the same bits with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Norms and SwiGLU's product alone, which are cheaper to compute than to keep.
    #[default]
    None,
    /// The attention, too: projections, softmax and all.
    Attention,
    /// Everything of a layer but its input.
    Block,
}
