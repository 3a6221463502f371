//! Shape of a LoRA adapter: its rank, its scale and the layers that it adapts.

use serde::{Deserialize, Serialize};

use crate::ModelConfig;

/// A linear layer that an adapter may adapt, by its name in `transformers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names of transformers")]
pub enum LoraTarget {
    QProj,
    KProj,
    VProj,
    OProj,
    GateProj,
    UpProj,
    DownProj,
}

impl LoraTarget {
    /// All of them, in the order of a layer.
    pub const ALL: [Self; 7] =
        [Self::QProj, Self::KProj, Self::VProj, Self::OProj, Self::GateProj, Self::UpProj, Self::DownProj];

    /// Name of the layer in `transformers` and in PEFT's `target_modules`.
    pub fn name(self) -> &'static str {
        match self {
            Self::QProj => "q_proj",
            Self::KProj => "k_proj",
            Self::VProj => "v_proj",
            Self::OProj => "o_proj",
            Self::GateProj => "gate_proj",
            Self::UpProj => "up_proj",
            Self::DownProj => "down_proj",
        }
    }

    /// The target with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Name of the module within a decoder layer.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::QProj => "self_attn.q_proj",
            Self::KProj => "self_attn.k_proj",
            Self::VProj => "self_attn.v_proj",
            Self::OProj => "self_attn.o_proj",
            Self::GateProj => "mlp.gate_proj",
            Self::UpProj => "mlp.up_proj",
            Self::DownProj => "mlp.down_proj",
        }
    }

    /// The product that computes it, which may compute others too.
    pub(crate) fn projection(self) -> Projection {
        match self {
            Self::QProj | Self::KProj | Self::VProj => Projection::Qkv,
            Self::OProj => Projection::Output,
            Self::GateProj | Self::UpProj => Projection::GateUp,
            Self::DownProj => Projection::Down,
        }
    }

    /// Number of output features.
    pub(crate) fn features(self, c: &ModelConfig) -> usize {
        match self {
            Self::QProj => c.heads * c.head_dim,
            Self::KProj | Self::VProj => c.kv_heads * c.head_dim,
            Self::OProj | Self::DownProj => c.hidden_size,
            Self::GateProj | Self::UpProj => c.intermediate_size,
        }
    }
}

/// A product of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projection {
    Qkv,
    Output,
    GateUp,
    Down,
}

impl Projection {
    pub(crate) const ALL: [Self; 4] = [Self::Qkv, Self::Output, Self::GateUp, Self::Down];

    /// Output and input features.
    pub(crate) fn shape(self, c: &ModelConfig) -> [usize; 2] {
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let (he, ge) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        match self {
            Self::Qkv => [he + 2 * ge, d],
            Self::Output => [d, he],
            Self::GateUp => [2 * f, d],
            Self::Down => [d, f],
        }
    }
}

/// Shape of a LoRA adapter (Hu et al., 2021, arXiv:2106.09685): `y = x·Wᵀ + s · (x·Aᵀ)·Bᵀ` for every adapted layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Divides by the square root of the rank instead of the rank (Kalajdzievski, 2023, arXiv:2312.03732).
    pub rslora: bool,
    /// The adapted layers, in the order of [`LoraTarget::ALL`], each once.
    pub targets: Vec<LoraTarget>,
}

impl LoraConfig {
    /// A shape whose targets are sorted, each once.
    pub fn new(rank: usize, alpha: f64, rslora: bool, targets: &[LoraTarget]) -> Self {
        let targets = LoraTarget::ALL.into_iter().filter(|target| targets.contains(target)).collect();
        Self { rank, alpha, rslora, targets }
    }

    /// The scale `s`.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Number of trained parameters of an adapter for a model.
    pub fn parameter_count(&self, c: &ModelConfig) -> u64 {
        let of = |target: &LoraTarget| self.rank * (target.features(c) + target.projection().shape(c)[1]);
        (c.layers * self.targets.iter().map(of).sum::<usize>()) as u64
    }
}
