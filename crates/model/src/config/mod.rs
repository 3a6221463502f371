//! What a model computes: the contents of `config.json`, read strictly.
//!
//! A field that changes the computation is either understood or an error that names it; a field that changes nothing
//! is kept and written back. `transformers` 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`) spellings are
//! both read, and both are written.

pub(crate) mod fields;
mod new_model;
mod output_heads;
mod read;
mod rope;
mod unsupported;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Compute, Recompute};

pub use new_model::NewModel;
pub use output_heads::OutputHeads;
pub use rope::RopeScaling;

/// The families of decoder-only transformers that RLoom computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Llama 2, 3 and what shares their form.
    #[default]
    Llama,
    /// Qwen2 and Qwen2.5: a bias on the query, key and value projections.
    Qwen2,
    /// Qwen3: queries and keys are normalised per head.
    Qwen3,
}

impl Family {
    /// Its `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// The shape of a model and everything else that its computation depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Which family's rules hold.
    pub family: Family,
    /// Rows of the embedding table, V.
    pub vocab_size: usize,
    /// Width of the residual stream, D.
    pub hidden_size: usize,
    /// Width of the feed-forward layer, F.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads, G; divides H.
    pub kv_heads: usize,
    /// Size of a head, E; even.
    pub head_dim: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How the rotary frequencies are stretched for longer contexts.
    pub rope_scaling: RopeScaling,
    /// What is computed from the last stream.
    pub output_heads: OutputHeads,
    /// Whether the language head is the embedding table. Of no meaning to a critic, which has none.
    pub tie_embeddings: bool,
    /// Whether the query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// The format of matrix products: a property of a run, `F32` until it is set and never in `config.json`.
    pub compute: Compute,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
    /// First token of a text, where there is one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// Filler of padded batches (RLoom pads nothing; others do).
    pub pad_token_id: Option<u32>,
    /// The fields as they were read, in their order; empty for a new model.
    source: Map<String, Value>,
}

impl ModelConfig {
    /// Reads the `config.json` of a causal language model.
    pub fn from_json_file(path: &Path) -> Result<Self, ConfigError> {
        Self::from_file_as(path, OutputHeads::Language)
    }

    /// Reads the text of a `config.json`; `origin` is what errors call it.
    pub fn from_json_str(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        Self::from_str_as(text, origin, OutputHeads::Language)
    }

    /// Reads the `config.json` of a model that must have these heads.
    pub(crate) fn from_file_as(path: &Path, heads: OutputHeads) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_str_as(&text, path, heads)
    }

    fn from_str_as(text: &str, origin: &Path, heads: OutputHeads) -> Result<Self, ConfigError> {
        let source: Map<String, Value> = serde_json::from_str(text)
            .map_err(|source| ConfigError::Json { path: origin.to_owned(), source })?;
        read::read(source, origin, heads)
    }

    /// Whether queries and keys are normalised per head.
    pub fn qk_norm(&self) -> bool {
        self.family == Family::Qwen3
    }

    /// Whether there is a language head beside the embedding table.
    pub(crate) fn untied_head(&self) -> bool {
        self.output_heads.language() && !self.tie_embeddings
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> u64 {
        crate::tensors::specs(self).iter().map(|spec| spec.len() as u64).sum()
    }

    /// Bytes of keys and values that one token takes in the cache.
    pub fn kv_bytes_per_token(&self) -> u64 {
        (2 * self.layers * self.kv_heads * self.head_dim * self.compute.bytes()) as u64
    }

    /// Bytes that training takes for each token of a micro-batch: what is kept of all layers, and the most that one of
    /// them takes beside it while it is computed.
    pub fn training_bytes_per_token(&self, recompute: Recompute) -> u64 {
        let (d, f) = (self.hidden_size, self.intermediate_size);
        let (he, ge) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (wide, narrow) = (size_of::<f32>(), self.compute.bytes());
        let attention = (2 * he + 2 * ge) * narrow + self.heads * wide;
        let mlp = d * wide + 2 * f * narrow;
        let input = d * wide;
        let (kept, again) = match recompute {
            Recompute::None => (input + attention + mlp, 0),
            Recompute::Attention => (input + mlp, attention),
            Recompute::Block => (input, attention + mlp),
        };
        // The derivative by the stream; then those by the queries, keys, values, what was attended to and the projection's
        // output, or the product of gate and up, whose derivatives take their place; in both a normalised input and the
        // derivative by it.
        let norm = d * (wide + narrow);
        let heads = (2 * he + 2 * ge) * wide + (he + 2 * ge) * narrow;
        let beside = d * wide + norm + heads.max(f * narrow);
        (self.layers * kept + again + beside) as u64
    }

    /// The rotary frequencies with the scaling in them, `[E/2]`, in radians per position.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        self.rope_scaling.inverse_frequencies(self.rope_theta, self.head_dim)
    }

    /// The fields of `config.json`: those that were read, in their order, with the data type set to what RLoom
    /// writes. A new model gets all fields of its family.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut fields = if self.source.is_empty() { self.new_fields() } else { self.source.clone() };
        let dtype = if fields.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        fields.insert(dtype.into(), json!("float32"));
        if fields.contains_key("dtype") && fields.contains_key("torch_dtype") {
            fields.insert("torch_dtype".into(), json!("float32"));
        }
        fields.insert("architectures".into(), json!([self.output_heads.architecture(self.family)]));
        for (name, ids) in [
            ("bos_token_id", json!(self.bos_token_id)),
            ("eos_token_id", token_ids_to_json(&self.eos_token_ids)),
            ("pad_token_id", json!(self.pad_token_id)),
        ] {
            if !ids.is_null() || fields.contains_key(name) {
                fields.insert(name.into(), ids);
            }
        }
        // Last, so that a critic of a model that was read and one of a model made from nothing have one order.
        if !self.output_heads.language() {
            output_heads::set_critic(&mut fields);
        }
        fields
    }

    fn new_fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| {
            fields.insert(name.to_owned(), value);
        };
        set("architectures", Value::Null); // keeps its place; the caller fills it
        set("model_type", json!(self.family.model_type()));
        set("vocab_size", json!(self.vocab_size));
        set("hidden_size", json!(self.hidden_size));
        set("intermediate_size", json!(self.intermediate_size));
        set("num_hidden_layers", json!(self.layers));
        set("num_attention_heads", json!(self.heads));
        set("num_key_value_heads", json!(self.kv_heads));
        set("head_dim", json!(self.head_dim));
        set("hidden_act", json!("silu"));
        set("max_position_embeddings", json!(self.max_positions));
        set("rms_norm_eps", json!(self.rms_norm_eps));
        set("rope_theta", json!(self.rope_theta));
        let scaling = self.rope_scaling.to_json();
        if let Some(scaling) = &scaling {
            set("rope_scaling", Value::Object(scaling.clone()));
        }
        let mut parameters = scaling.unwrap_or_else(|| {
            let mut plain = Map::new();
            plain.insert("rope_type".into(), json!("default"));
            plain
        });
        parameters.insert("rope_theta".into(), json!(self.rope_theta));
        set("rope_parameters", Value::Object(parameters));
        match self.family {
            Family::Llama => {
                set("attention_bias", json!(self.qkv_bias));
                set("mlp_bias", json!(false));
            }
            Family::Qwen2 => set("use_sliding_window", json!(false)),
            Family::Qwen3 => {
                set("attention_bias", json!(self.qkv_bias));
                set("use_sliding_window", json!(false));
            }
        }
        set("attention_dropout", json!(0.0));
        set("tie_word_embeddings", json!(self.tie_embeddings));
        set("initializer_range", json!(self.initializer_range));
        set("use_cache", json!(true));
        set("torch_dtype", json!("float32"));
        fields
    }

    /// Checks that the sizes fit each other; `origin` is what errors call the description.
    fn validate(&self, origin: &Path) -> Result<(), ConfigError> {
        let inconsistent =
            |message: String| Err(ConfigError::Inconsistent { path: origin.to_owned(), message });
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_positions),
        ] {
            if value == 0 || value > u32::MAX as usize {
                return inconsistent(format!("{name} is {value}, it must be from 1 to {}", u32::MAX));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return inconsistent(format!(
                "num_attention_heads {} is not a multiple of num_key_value_heads {}",
                self.heads, self.kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return inconsistent(format!("head_dim {} is odd, rotary embedding turns pairs", self.head_dim));
        }
        for (name, value) in [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)] {
            if !(value.is_finite() && value > 0.0) {
                return inconsistent(format!("{name} is {value}, it must be a positive number"));
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            return inconsistent(format!("initializer_range is {}", self.initializer_range));
        }
        for (name, id) in [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)]
            .into_iter()
            .chain(self.eos_token_ids.iter().map(|&id| ("eos_token_id", Some(id))))
        {
            if id.is_some_and(|id| id as usize >= self.vocab_size) {
                return inconsistent(format!(
                    "{name} {} is outside of the vocabulary of {}",
                    id.unwrap_or_default(),
                    self.vocab_size
                ));
            }
        }
        Ok(())
    }
}

/// One id as a number, several as a list, none as null: as `transformers` writes them.
pub(crate) fn token_ids_to_json(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    }
}

/// A model description that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}{}", path.display(), missing_folder_hint(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a JSON object.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The place and what is wrong there.
        source: serde_json::Error,
    },
    /// A field that must be there is not.
    #[error("{}: the field {field} is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
    },
    /// A field has another type than it must have.
    #[error("{}: {field} is {value}, expected {expected}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
        /// What it is, as JSON.
        value: String,
    },
    /// A field asks for a computation that RLoom does not have.
    #[error("{}: {field} = {value} is not supported: {reason}\nhint: {hint}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value, as JSON.
        value: String,
        /// What it would change.
        reason: &'static str,
        /// What can be done.
        hint: &'static str,
    },
    /// Fields contradict each other or a size cannot be.
    #[error("{}: {message}", path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        message: String,
    },
}

fn missing_folder_hint(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::NotFound {
        "\nhint: a model folder holds config.json, model.safetensors and tokenizer.json"
    } else {
        ""
    }
}
