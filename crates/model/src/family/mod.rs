//! Families of decoder-only transformers, one file each: what a family adds to the common layer, and its `config.json`.
//!
//! All families compute `x + Wo·attention(rope(Wqkv·norm(x)))` and then `x + Wdown·(silu(Wgate·norm(x)) · Wup·norm(x))` in each
//! layer, with RMSNorm and grouped heads, and a final norm before the language head.

mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Supported families of decoder-only transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Llama 2, 3 and models of the same architecture.
    #[default]
    Llama,
    /// Mistral 7B, Mistral Nemo and models of the same architecture.
    Mistral,
    /// Qwen2 and Qwen2.5: a bias on the query, key and value projections.
    Qwen2,
    /// Qwen3: queries and keys are normalised per head.
    Qwen3,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// Value of `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        self.architecture().model_type
    }

    pub(crate) fn architecture(self) -> &'static Architecture {
        match self {
            Self::Llama => &llama::ARCHITECTURE,
            Self::Mistral => &mistral::ARCHITECTURE,
            Self::Qwen2 => &qwen2::ARCHITECTURE,
            Self::Qwen3 => &qwen3::ARCHITECTURE,
        }
    }
}

/// What distinguishes a family, and the defaults of its configuration class in `transformers`.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// Value of `model_type` in `config.json`.
    pub(crate) model_type: &'static str,
    /// What the names of its classes in `transformers` begin with.
    pub(crate) class_prefix: &'static str,
    /// Bias of the query, key and value projections.
    pub(crate) qkv_bias: Bias,
    /// Bias of the attention's output projection.
    pub(crate) output_bias: Bias,
    /// Queries and keys are normalised per head.
    pub(crate) qk_norm: bool,
    /// Fields that give layers a sliding window.
    pub(crate) window: Window,
    /// Size of a head if the file does not give one; `hidden_size / num_attention_heads` if `None`.
    pub(crate) default_head_dim: Option<usize>,
    /// Key and value heads if the file does not give them: as many as query heads, or an error, because the default of the
    /// class fits almost no model.
    pub(crate) defaults_to_full_kv_heads: bool,
    /// Longest sequence if the file does not give it.
    pub(crate) default_max_positions: usize,
    /// Fields of `config.json` besides those of all families.
    pub(crate) fields: &'static [&'static str],
}

/// Bias of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    Never,
    Always,
    /// If the field `attention_bias` says so.
    AsConfigured,
}

impl Bias {
    /// True if there is a bias for this value of `attention_bias`.
    pub(crate) fn resolve(self, attention_bias: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::AsConfigured => attention_bias,
        }
    }
}

/// Where `config.json` gives the sliding window of attention: the number of tokens that a token sees, its own included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Nowhere: every token sees all earlier ones.
    Never,
    /// `sliding_window` is the window of all layers. `null` disables it; a file without the field has this size.
    AllLayers { default: usize },
    /// `sliding_window` counts if `use_sliding_window` is true; files contain a size even if it is not. The layers from
    /// `max_window_layers` on have it, or those that `layer_types` lists. Without the fields, these are the values.
    SomeLayers { size: usize, first_layer: usize },
}
