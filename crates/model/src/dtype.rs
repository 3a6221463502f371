//! Dtype of matrix products. A property of a run, not of a model folder.

use rloom_ops::{Ctx, Isa, OpsError, Order};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Format of the weights and inputs of matrix products, including attention's probabilities and their derivatives in the order
/// [`Order::DotPairs`].
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
    /// bitwise identical; in f32 it is the instruction set, in bf16 the order in which products are summed.
    pub fn numeric_path(self, ctx: &Ctx) -> &'static str {
        match (self, ctx.isa()) {
            // Both add instructions for bf16 products only.
            (Self::F32, Isa::Avx512Bf16 | Isa::Amx) => Isa::Avx512.name(),
            (Self::F32, isa) => isa.name(),
            (Self::Bf16, _) => match ctx.order() {
                Order::Widened => "bf16 widened",
                Order::DotPairs => "bf16 dot pairs",
                Order::Tiles => "bf16 tiles",
            },
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

/// Order in which bf16 products are summed. Each order gives the same bits on every processor that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NumericPath {
    /// The processor's fastest. A run records which one it is, and keeps it.
    #[default]
    Auto,
    /// Ascending f32 multiply-adds: on every processor, the fastest one without instructions for bf16.
    Widened,
    /// Pairs of products, as by AVX-512 BF16; emulated on other processors, several times slower than f32.
    DotPairs,
    /// Blocks of pairs, as by AMX; only on processors with AMX.
    Tiles,
}

impl NumericPath {
    /// Name, as spelled in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Widened => "widened",
            Self::DotPairs => "dot_pairs",
            Self::Tiles => "tiles",
        }
    }

    /// The order, unless the processor determines it.
    pub fn order(self) -> Option<Order> {
        match self {
            Self::Auto => None,
            Self::Widened => Some(Order::Widened),
            Self::DotPairs => Some(Order::DotPairs),
            Self::Tiles => Some(Order::Tiles),
        }
    }

    /// The path with a [name](Dtype::numeric_path) that a checkpoint records; `Auto` for those of f32.
    pub fn recorded(name: &str) -> Self {
        match name {
            "bf16 widened" => Self::Widened,
            "bf16 dot pairs" => Self::DotPairs,
            "bf16 tiles" => Self::Tiles,
            _ => Self::Auto,
        }
    }

    /// The context with this order of bf16 products; fails if the processor does not have it.
    pub fn within(self, ctx: Ctx) -> Result<Ctx, OpsError> {
        match self.order() {
            None => Ok(ctx),
            Some(order) => ctx.with_order(order),
        }
    }
}

impl From<Order> for NumericPath {
    fn from(order: Order) -> Self {
        match order {
            Order::Widened => Self::Widened,
            Order::DotPairs => Self::DotPairs,
            Order::Tiles => Self::Tiles,
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
