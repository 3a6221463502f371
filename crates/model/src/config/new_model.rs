//! Configurations of models initialised from scratch.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{ConfigError, Inconsistency, MOST_LAYERS, ModelConfig, OutputHeads, RopeScaling};
use crate::{Dtype, Family};

/// Settings of a model initialised from scratch; the vocabulary is that of its tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewModel {
    /// Model family, which determines how `transformers` opens the folder.
    #[serde(default)]
    pub family: Family,
    /// Number of decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; defaults to the number of query heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<usize>,
    /// Size of a head; defaults to `hidden_size / heads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f64,
    /// Epsilon of RMSNorm, added to the mean square.
    #[serde(default = "default_rms_norm_eps")]
    pub rms_norm_eps: f64,
    /// Shares the embedding table with the language head.
    #[serde(default = "default_tie_embeddings")]
    pub tie_embeddings: bool,
    /// Standard deviation of the initial weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
}

fn default_rope_theta() -> f64 {
    10_000.0
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_tie_embeddings() -> bool {
    true
}

fn default_initializer_range() -> f64 {
    0.02
}

impl NewModel {
    /// Configuration of such a model for a vocabulary size. Special tokens are not set: set
    /// [`ModelConfig::eos_token_ids`] and related fields from the tokenizer.
    pub fn config(&self, vocab_size: usize) -> Result<ModelConfig, ConfigError> {
        let origin = Path::new("[model.new]");
        let head_dim = match self.head_dim {
            Some(head_dim) => head_dim,
            None if self.heads > 0 && self.hidden_size.is_multiple_of(self.heads) => {
                self.hidden_size / self.heads
            }
            None => {
                return Err(ConfigError::Inconsistent {
                    path: origin.to_owned(),
                    problem: Inconsistency::NoHeadDim {
                        hidden_size: self.hidden_size,
                        heads_field: "heads",
                        heads: self.heads,
                    },
                });
            }
        };
        let config = ModelConfig {
            family: self.family,
            vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            head_dim,
            windows: vec![None; self.layers.min(MOST_LAYERS)],
            max_positions: self.max_positions,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            rope_scaling: RopeScaling::None,
            output_heads: OutputHeads::Language,
            tie_embeddings: self.tie_embeddings,
            qkv_bias: self.family.architecture().qkv_bias.resolve(false),
            output_bias: false,
            dtype: Dtype::default(),
            initializer_range: self.initializer_range,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            pad_token_id: None,
            source: Map::new(),
        };
        config.validate(origin)?;
        Ok(config)
    }
}
