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
    LmHead,
}

impl LoraTarget {
    /// The linear layers of a decoder layer, in their order. The language head is not one of them.
    pub const LAYER: [Self; 7] =
        [Self::QProj, Self::KProj, Self::VProj, Self::OProj, Self::GateProj, Self::UpProj, Self::DownProj];

    /// All targets: those of a layer, then the language head.
    fn all() -> impl Iterator<Item = Self> {
        Self::LAYER.into_iter().chain([Self::LmHead])
    }

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
            Self::LmHead => "lm_head",
        }
    }

    /// The target with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|target| target.name() == name)
    }

    /// Name of the module within a decoder layer, or of the language head.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::QProj => "self_attn.q_proj",
            Self::KProj => "self_attn.k_proj",
            Self::VProj => "self_attn.v_proj",
            Self::OProj => "self_attn.o_proj",
            Self::GateProj => "mlp.gate_proj",
            Self::UpProj => "mlp.up_proj",
            Self::DownProj => "mlp.down_proj",
            Self::LmHead => "lm_head",
        }
    }

    /// The product of a decoder layer that computes it, which may compute others too; `None` for the language head.
    pub(crate) fn projection(self) -> Option<Projection> {
        match self {
            Self::QProj | Self::KProj | Self::VProj => Some(Projection::Qkv),
            Self::OProj => Some(Projection::Output),
            Self::GateProj | Self::UpProj => Some(Projection::GateUp),
            Self::DownProj => Some(Projection::Down),
            Self::LmHead => None,
        }
    }

    /// Number of input features.
    fn inputs(self, c: &ModelConfig) -> usize {
        self.projection().map_or(c.hidden_size, |projection| projection.shape(c)[1])
    }

    /// Number of output features.
    pub(crate) fn features(self, c: &ModelConfig) -> usize {
        match self {
            Self::QProj => c.heads * c.head_dim,
            Self::KProj | Self::VProj => c.kv_heads * c.head_dim,
            Self::OProj | Self::DownProj => c.hidden_size,
            Self::GateProj | Self::UpProj => c.intermediate_size,
            Self::LmHead => c.vocab_size,
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
    /// The adapted layers, in the order of [`LoraTarget::LAYER`] and with the language head last, each once.
    pub targets: Vec<LoraTarget>,
}

impl LoraConfig {
    /// A shape whose targets are sorted, each once.
    pub fn new(rank: usize, alpha: f64, rslora: bool, targets: &[LoraTarget]) -> Self {
        let targets = LoraTarget::all().filter(|target| targets.contains(target)).collect();
        Self { rank, alpha, rslora, targets }
    }

    /// The scale `s`.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Rank of the addition to each product, by [`Projection`]; 0 without one.
    pub(crate) fn ranks(&self) -> [usize; 4] {
        Projection::ALL.map(|projection| self.rank_of(Some(projection)))
    }

    /// Rank of the addition to the language head; 0 without one.
    pub(crate) fn head_rank(&self) -> usize {
        self.rank_of(None)
    }

    fn rank_of(&self, projection: Option<Projection>) -> usize {
        self.rank * self.targets.iter().filter(|target| target.projection() == projection).count()
    }

    /// Number of trained parameters of an adapter for a model.
    pub fn parameter_count(&self, c: &ModelConfig) -> u64 {
        let of = |target: &LoraTarget| {
            let times = if target.projection().is_some() { c.layers } else { 1 };
            times * self.rank * (target.features(c) + target.inputs(c))
        };
        self.targets.iter().map(of).sum::<usize>() as u64
    }
}
