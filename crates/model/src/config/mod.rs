//! Model configurations: strict reading of `config.json`.
//!
//! A field that affects the computation is either supported or an error that names it, and so is a field that is unknown; the
//! others are kept and written back. The spellings of `transformers` 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`) are both
//! read and both written.

mod allowed;
pub(crate) mod fields;
mod new_model;
mod output_heads;
mod read;
mod rope;
mod unsupported;
mod windows;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::family::{Bias, Window};
use crate::{Dtype, Family};

pub use new_model::NewModel;
pub use output_heads::OutputHeads;
pub use rope::RopeScaling;

/// Largest number of layers. The deepest known transformers have 1000.
const MOST_LAYERS: usize = 10_000;
/// Largest number of parameters, 4.4 · 10¹². All derived sizes in bytes fit 64 bits.
const MOST_PARAMETERS: u64 = 1 << 42;

/// Shape of a model and all other parameters of its computation.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Model family.
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
    /// For each layer the number of tokens that a token sees, its own included; `None` sees all earlier ones.
    pub windows: Vec<Option<usize>>,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Epsilon of RMSNorm, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies for longer contexts.
    pub rope_scaling: RopeScaling,
    /// Heads over the final hidden states.
    pub output_heads: OutputHeads,
    /// True if the language head shares the embedding table. Irrelevant for a critic, which has no language head.
    pub tie_embeddings: bool,
    /// True if the query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// True if the attention's output projection has a bias.
    pub output_bias: bool,
    /// Dtype of matrix products: a property of a run, `F32` until set, never in `config.json`.
    pub dtype: Dtype,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
    /// Token that begins a text, if any.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// Padding token (unused by RLoom, needed by other programs).
    pub pad_token_id: Option<u32>,
    /// Original fields in their order; empty for a new model.
    source: Map<String, Value>,
}

impl ModelConfig {
    /// Reads the `config.json` of a causal language model.
    pub fn from_json_file(path: &Path) -> Result<Self, ConfigError> {
        Self::from_file_as(path, OutputHeads::Language)
    }

    /// Parses the text of a `config.json`; errors refer to it as `origin`.
    pub fn from_json_str(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        Self::from_str_as(text, origin, OutputHeads::Language)
    }

    /// Reads the `config.json` of a model with the given heads.
    pub(crate) fn from_file_as(path: &Path, heads: OutputHeads) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => ConfigError::NotFound { path: path.to_owned() },
            _ => ConfigError::Read { path: path.to_owned(), source },
        })?;
        Self::from_str_as(&text, path, heads)
    }

    fn from_str_as(text: &str, origin: &Path, heads: OutputHeads) -> Result<Self, ConfigError> {
        let source: Map<String, Value> = serde_json::from_str(text)
            .map_err(|source| ConfigError::Json { path: origin.to_owned(), source })?;
        read::read(source, origin, heads)
    }

    /// Heads of the model in a folder by its `config.json`; those of a policy if it cannot be read.
    pub(crate) fn heads_of(folder: &Path) -> OutputHeads {
        let text = std::fs::read_to_string(folder.join("config.json")).unwrap_or_default();
        let fields: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        let class = fields.get("architectures").and_then(|names| names.get(0)?.as_str()).unwrap_or_default();
        let labels = fields.get("id2label").and_then(Value::as_object).map_or(0, Map::len);
        OutputHeads::of_class(class, labels)
    }

    /// True for the folder of a reward model that this program has trained: its texts end with an end-of-text token.
    pub fn reads_end_token(&self) -> bool {
        output_heads::reads_end_token(&self.source)
    }

    /// This configuration with the special tokens and the other fields of `own`, which has the same shape.
    pub(crate) fn with_settings_of(self, own: Self) -> Self {
        let Self { bos_token_id, eos_token_ids, pad_token_id, source, .. } = own;
        Self { bos_token_id, eos_token_ids, pad_token_id, source, ..self }
    }

    /// True if queries and keys are normalised per head.
    pub fn qk_norm(&self) -> bool {
        self.family.architecture().qk_norm
    }

    /// True if there is a language head separate from the embedding table.
    pub(crate) fn untied_head(&self) -> bool {
        self.output_heads.language() && !self.tie_embeddings
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> u64 {
        // Exact: `validate` limits it.
        self.wide_parameter_count() as u64
    }

    /// Number of parameters, without overflow for any sizes up to 32 bits and without the list of tensors.
    fn wide_parameter_count(&self) -> u128 {
        let wide = |size: usize| size as u128;
        let (d, f, e) = (wide(self.hidden_size), wide(self.intermediate_size), wide(self.head_dim));
        let (queries, kv) = (wide(self.heads) * e, 2 * wide(self.kv_heads) * e);
        let biases = if self.qkv_bias { queries + kv } else { 0 } + if self.output_bias { d } else { 0 };
        let norms = 2 * d + if self.qk_norm() { 2 * e } else { 0 };
        let layer = (queries + kv) * d + queries * d + 3 * f * d + biases + norms;
        let tables = if self.untied_head() { 2 } else { 1 };
        let heads = self.output_heads;
        let value = wide(heads.labels()) * (d + u128::from(heads.value_bias()));
        tables * wide(self.vocab_size) * d + wide(self.layers) * layer + d + value
    }

    /// Cache size of the keys and values of one token, in bytes.
    pub fn kv_bytes_per_token(&self) -> u64 {
        (2 * self.layers * self.kv_heads * self.head_dim * self.dtype.bytes()) as u64
    }

    /// Scaled rotary frequencies, `[E/2]`, in radians per position.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        self.rope_scaling.inverse_frequencies(self.rope_theta, self.head_dim)
    }

    /// Factor of the rotated queries and of the rotated keys.
    pub fn rotary_scale(&self) -> f32 {
        self.rope_scaling.rotary_scale() as f32
    }

    /// Fields of `config.json`: the original ones in their order, with the data type that RLoom writes. A new model has
    /// all fields of its family.
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
        // Last, so that classifiers of loaded models and of newly initialised ones have the same field order.
        if !self.output_heads.language() {
            output_heads::set_classifier(&mut fields, self);
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
        let architecture = self.family.architecture();
        if architecture.qkv_bias == Bias::AsConfigured {
            set("attention_bias", json!(self.qkv_bias));
        }
        if architecture.fields.contains(&"mlp_bias") {
            set("mlp_bias", json!(false));
        }
        match architecture.window {
            Window::Never => {}
            Window::SomeLayers { .. } => set("use_sliding_window", json!(false)),
            Window::AllLayers { .. } => set("sliding_window", Value::Null),
        }
        set("attention_dropout", json!(0.0));
        set("tie_word_embeddings", json!(self.tie_embeddings));
        set("initializer_range", json!(self.initializer_range));
        set("use_cache", json!(true));
        set("torch_dtype", json!("float32"));
        fields
    }

    /// Gives the language head a table of its own.
    pub(crate) fn untie(&mut self) {
        self.tie_embeddings = false;
        if !self.source.is_empty() {
            self.source.insert("tie_word_embeddings".into(), json!(false));
        }
    }

    /// Checks the consistency of the sizes; errors refer to the configuration as `origin`.
    fn validate(&self, origin: &Path) -> Result<(), ConfigError> {
        let inconsistent = |problem| Err(ConfigError::Inconsistent { path: origin.to_owned(), problem });
        let most = u32::MAX as usize;
        for (field, value, most) in [
            ("vocab_size", self.vocab_size, most),
            ("hidden_size", self.hidden_size, most),
            ("intermediate_size", self.intermediate_size, most),
            ("num_hidden_layers", self.layers, MOST_LAYERS),
            ("num_attention_heads", self.heads, most),
            ("num_key_value_heads", self.kv_heads, most),
            ("head_dim", self.head_dim, most),
            ("max_position_embeddings", self.max_positions, most),
        ] {
            if value == 0 || value > most {
                return inconsistent(Inconsistency::Size { field, value, most });
            }
        }
        let parameters = self.wide_parameter_count();
        if parameters > u128::from(MOST_PARAMETERS) {
            return inconsistent(Inconsistency::Parameters { parameters });
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return inconsistent(Inconsistency::KvHeads { heads: self.heads, kv_heads: self.kv_heads });
        }
        if !self.head_dim.is_multiple_of(2) {
            return inconsistent(Inconsistency::OddHeadDim { head_dim: self.head_dim });
        }
        // The kernels compute in f32. A smaller base or factor would make frequencies infinite.
        if !(self.rms_norm_eps > 0.0 && (self.rms_norm_eps as f32).is_normal()) {
            return inconsistent(Inconsistency::NotPositive {
                field: "rms_norm_eps",
                value: self.rms_norm_eps,
            });
        }
        for (field, value) in
            [("rope_theta", self.rope_theta), ("the factor of rope_scaling", self.rope_scaling.factor())]
        {
            if !(value.is_finite() && value >= 1.0) {
                return inconsistent(Inconsistency::BelowOne { field, value });
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            return inconsistent(Inconsistency::InitializerRange { value: self.initializer_range });
        }
        for (field, id) in [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)]
            .into_iter()
            .chain(self.eos_token_ids.iter().map(|&id| ("eos_token_id", Some(id))))
        {
            if let Some(id) = id
                && id as usize >= self.vocab_size
            {
                return inconsistent(Inconsistency::TokenId { field, id, vocab_size: self.vocab_size });
            }
        }
        Ok(())
    }
}

/// A single id as a number, several as a list, none as null: as `transformers` writes them.
pub(crate) fn token_ids_to_json(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    }
}

/// An invalid model configuration.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum ConfigError {
    /// There is no such file: the path of the model is wrong.
    #[error("{}: no such file", path.display())]
    #[diagnostic(help("a model folder contains config.json, model.safetensors and tokenizer.json"))]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not a JSON object.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Error of the parser, with its position.
        source: serde_json::Error,
    },
    /// A required field is missing.
    #[error("{}: the field {field} is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
    },
    /// A field has the wrong type.
    #[error("{}: {field} is {value}, expected {expected}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// Expected type.
        expected: &'static str,
        /// Actual value, as JSON.
        value: String,
    },
    /// A field requires an unsupported computation.
    #[error("{}: {field} = {value} is not supported: {reason}", path.display())]
    #[diagnostic(help("{hint}"))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value, as JSON.
        value: String,
        /// Effect of the value.
        reason: &'static str,
        /// Suggested remedy.
        hint: &'static str,
    },
    /// Fields contradict each other or a size is invalid.
    #[error("{}: {problem}", path.display())]
    #[diagnostic(forward(problem))]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        #[source]
        problem: Inconsistency,
    },
}

/// A contradiction between fields of a model configuration, or an invalid size.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// A size is 0 or too large.
    #[error("{field} is {value}, it must be from 1 to {most}")]
    Size {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// Largest value.
        most: usize,
    },
    /// The sizes are possible each, but not together.
    #[error(
        "vocab_size, hidden_size, intermediate_size, num_hidden_layers, heads and head_dim give {parameters} \
         parameters, at most {MOST_PARAMETERS} are supported"
    )]
    Parameters {
        /// Number of parameters.
        parameters: u128,
    },
    /// The query heads cannot be divided evenly among the kv heads.
    #[error("num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")]
    KvHeads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// The size of a head is not given and cannot be derived.
    #[error("hidden_size {hidden_size} is not a multiple of {heads_field} {heads}")]
    #[diagnostic(help("set head_dim"))]
    NoHeadDim {
        /// Width of the residual stream.
        hidden_size: usize,
        /// Field of the number of heads.
        heads_field: &'static str,
        /// Query heads.
        heads: usize,
    },
    /// The list of the layers' kinds has another length than there are layers.
    #[error("layer_types has {types} entries, num_hidden_layers is {layers}")]
    LayerTypes {
        /// Length of the list.
        types: usize,
        /// Number of layers.
        layers: usize,
    },
    /// The size of a head is odd.
    #[error("head_dim {head_dim} is odd, rotary embedding rotates pairs")]
    OddHeadDim {
        /// Size of a head.
        head_dim: usize,
    },
    /// A field is not a positive number.
    #[error("{field} is {value}, it must be a positive number in the range of f32")]
    NotPositive {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// The base or the factor of the rotary frequencies is below 1 or not finite.
    #[error("{field} is {value}, it must be a number of at least 1")]
    BelowOne {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// The standard deviation of the initial weights is negative or not finite.
    #[error("initializer_range is {value}, it must be 0 or more")]
    InitializerRange {
        /// Its value.
        value: f64,
    },
    /// A special token is not in the vocabulary.
    #[error("{field} {id} is outside the vocabulary of {vocab_size}")]
    TokenId {
        /// The field.
        field: &'static str,
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Two spellings of the rotary settings have different values.
    #[error("{field} disagrees with rope_theta or rope_scaling")]
    RopeSpellings {
        /// The second spelling.
        field: &'static str,
    },
    /// The bounds of YaRN's interpolation are in the wrong order.
    #[error("{object}.beta_fast must be above {object}.beta_slow")]
    RotationBounds {
        /// The object that contains them.
        object: String,
    },
    /// The frequency factors of the Llama 3 scaling are in the wrong order.
    #[error("{object}.high_freq_factor must be above {object}.low_freq_factor")]
    FrequencyFactors {
        /// The object that contains them.
        object: String,
    },
}
