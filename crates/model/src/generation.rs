//! `generation_config.json`: special tokens and the recommended sampling settings.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::fields::Fields;
use crate::config::token_ids_to_json;
use crate::{ConfigError, ModelConfig};

/// Supported fields of `generation_config.json`; all other fields are kept and written back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Token that begins a text, if any.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// Padding token.
    pub pad_token_id: Option<u32>,
    /// Enables sampling; greedy decoding otherwise.
    pub do_sample: Option<bool>,
    /// Recommended temperature.
    pub temperature: Option<f64>,
    /// Recommended number of most probable tokens to sample from.
    pub top_k: Option<usize>,
    /// Recommended cumulative probability to sample from.
    pub top_p: Option<f64>,
    /// Recommended minimum probability, relative to the most probable token.
    pub min_p: Option<f64>,
    /// Original fields in their order.
    source: Map<String, Value>,
}

pub(crate) const FILE: &str = "generation_config.json";

impl GenerationConfig {
    /// A configuration with special tokens only.
    pub fn new(bos_token_id: Option<u32>, eos_token_ids: Vec<u32>, pad_token_id: Option<u32>) -> Self {
        Self { bos_token_id, eos_token_ids, pad_token_id, ..Self::default() }
    }

    /// Reads a model folder's file. If it does not exist, the special tokens are those of `config.json`.
    pub fn load(folder: &Path, config: &ModelConfig) -> Result<Self, ConfigError> {
        let special = Self::new(config.bos_token_id, config.eos_token_ids.clone(), config.pad_token_id);
        Self::load_over(folder, special)
    }

    /// Reads a model folder's file over the special tokens of `config.json`.
    pub(crate) fn load_over(folder: &Path, special: Self) -> Result<Self, ConfigError> {
        let path = folder.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(special);
            }
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let source: Map<String, Value> =
            serde_json::from_str(&text).map_err(|source| ConfigError::Json { path: path.clone(), source })?;
        let fields = Fields { map: &source, path: &path, prefix: "" };
        let mut eos_token_ids = fields.token_ids("eos_token_id")?;
        if eos_token_ids.is_empty() {
            eos_token_ids = special.eos_token_ids;
        }
        Ok(Self {
            bos_token_id: fields.token_id("bos_token_id")?.or(special.bos_token_id),
            eos_token_ids,
            pad_token_id: fields.token_id("pad_token_id")?.or(special.pad_token_id),
            do_sample: fields.flag("do_sample")?,
            temperature: fields.number("temperature")?,
            top_k: fields.count("top_k")?,
            top_p: fields.number("top_p")?,
            min_p: fields.number("min_p")?,
            source,
        })
    }

    /// Writes the file to a model folder.
    pub fn save(&self, folder: &Path) -> Result<(), ConfigError> {
        write_json(&folder.join(FILE), &self.to_json())
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut fields = self.source.clone();
        let values = [
            ("bos_token_id", json!(self.bos_token_id)),
            ("eos_token_id", token_ids_to_json(&self.eos_token_ids)),
            ("pad_token_id", json!(self.pad_token_id)),
            ("do_sample", json!(self.do_sample)),
            ("temperature", json!(self.temperature)),
            ("top_k", json!(self.top_k)),
            ("top_p", json!(self.top_p)),
            ("min_p", json!(self.min_p)),
        ];
        for (name, value) in values {
            if value.is_null() {
                fields.shift_remove(name);
            } else {
                fields.insert(name.to_owned(), value);
            }
        }
        fields
    }
}

/// Writes an indented JSON object with a final newline.
pub(crate) fn write_json(path: &Path, fields: &Map<String, Value>) -> Result<(), ConfigError> {
    // Infallible: a map of strings and numbers always has a JSON representation.
    let text = serde_json::to_string_pretty(fields)
        .map_err(|source| ConfigError::Json { path: path.to_owned(), source })?;
    std::fs::write(path, text + "\n").map_err(|source| ConfigError::Write { path: path.to_owned(), source })
}
