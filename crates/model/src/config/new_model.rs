//! Models made from nothing.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{ConfigError, Family, ModelConfig, OutputHeads, RopeScaling};
use crate::Compute;

/// What a recipe says about a model that is made from nothing; the vocabulary comes from its tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewModel {
    /// Which family's rules hold, and as what `transformers` opens it.
    #[serde(default)]
    pub family: Family,
    /// Number of decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; as many as query heads where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<usize>,
    /// Size of a head; `hidden_size / heads` where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f64,
    /// Added to the mean square in RMSNorm.
    #[serde(default = "default_rms_norm_eps")]
    pub rms_norm_eps: f64,
    /// Whether the head is the embedding table.
    #[serde(default = "default_tie_embeddings")]
    pub tie_embeddings: bool,
    /// Standard deviation of initial weights.
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
    /// The configuration of such a model over a vocabulary. Special tokens are left out: set
    /// [`ModelConfig::eos_token_ids`] and its neighbours from the tokenizer.
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
                    message: format!(
                        "hidden_size {} is not a multiple of heads {}\nhint: give head_dim",
                        self.hidden_size, self.heads
                    ),
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
            max_positions: self.max_positions,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            rope_scaling: RopeScaling::None,
            output_heads: OutputHeads::Language,
            tie_embeddings: self.tie_embeddings,
            qkv_bias: self.family == Family::Qwen2,
            output_bias: false,
            compute: Compute::default(),
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
