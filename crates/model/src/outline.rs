//! Models of any architecture, as far as their folders describe them in common fields.

use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use crate::config::fields::Fields;
use crate::{ConfigError, GenerationConfig, LoadError, Model};

/// Properties of a causal language model that programs need which leave its computation to other engines. No architecture
/// is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelOutline {
    /// Longest sequence in tokens.
    pub context: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Number of stored parameters.
    pub parameters: u64,
    /// Special tokens and recommended sampling.
    pub generation: GenerationConfig,
}

/// Fields of `config.json` with the longest sequence, by architecture.
const CONTEXT: [&str; 4] = ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"];

impl ModelOutline {
    /// Reads the configuration files of a Hugging Face folder and the headers of its weights.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, and a `config.json` without the longest sequence.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        let source: Map<String, Value> =
            serde_json::from_str(&text).map_err(|source| ConfigError::Json { path: path.clone(), source })?;
        let whole = Fields { map: &source, path: &path, prefix: "" };
        // Models with several modalities describe their language model in a table of its own.
        let text_config = whole.object("text_config")?;
        let language = match text_config {
            Some(map) => Fields { map, path: &path, prefix: "text_config." },
            None => whole,
        };
        let mut context = None;
        for name in CONTEXT {
            context = context.or(language.count(name)?);
        }
        let context = context.ok_or_else(|| language.missing(CONTEXT[0]))?;
        let vocabulary = language.count("vocab_size")?.ok_or_else(|| language.missing("vocab_size"))?;
        let mut eos = whole.token_ids("eos_token_id")?;
        if eos.is_empty() {
            eos = language.token_ids("eos_token_id")?;
        }
        let special =
            GenerationConfig::new(whole.token_id("bos_token_id")?, eos, whole.token_id("pad_token_id")?);
        let generation = GenerationConfig::load_over(folder, special)?;
        // Of an adapter, those of its base.
        let base = Model::base_of(folder)?;
        let parameters = Checkpoint::open(base.as_deref().unwrap_or(folder))?.elements();
        Ok(Self { context, vocabulary, parameters, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, ModelConfig, StoredTensors};

    #[test]
    fn the_outline_of_a_known_model_is_that_of_its_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let config = r#"{ "model_type": "llama", "vocab_size": 7, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 33, "eos_token_id": [3, 4],
            "bos_token_id": 1 }"#;
        let config = ModelConfig::from_json_str(config, Path::new("config.json")).unwrap();
        let model = Model::init(&config, 1).with_dtype(Dtype::F32);
        model.save(folder.path(), &GenerationConfig::new(Some(1), vec![4], None)).unwrap();
        let outline = ModelOutline::load(folder.path()).unwrap();
        assert_eq!(
            (outline.context, outline.vocabulary, outline.parameters),
            (33, 7, model.parameter_count())
        );
        assert_eq!(
            (outline.generation.bos_token_id, outline.generation.eos_token_ids.clone()),
            (Some(1), vec![4])
        );
        let tensors = StoredTensors::open(folder.path()).unwrap();
        let stored: Vec<(&str, Vec<f32>)> =
            tensors.names().map(|name| (name, tensors.read(name).unwrap())).collect();
        let mut expected: Vec<(&str, &[f32])> =
            model.named_tensors().map(|(spec, values)| (spec.name.as_str(), values)).collect();
        expected.sort_by_key(|(name, _)| *name);
        assert!(stored.iter().map(|(name, values)| (*name, values.as_slice())).eq(expected));
        std::fs::remove_file(folder.path().join("generation_config.json")).unwrap();
        assert_eq!(ModelOutline::load(folder.path()).unwrap().generation.eos_token_ids, [3, 4]);
    }

    #[test]
    fn an_unknown_architecture_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        let weights = br#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
        let mut file = (weights.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(weights);
        file.resize(file.len() + 12, 0);
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        for (text, context) in [
            (r#"{ "model_type": "gpt2", "n_positions": 12, "vocab_size": 8, "eos_token_id": 5 }"#, 12),
            (
                r#"{ "model_type": "x", "text_config": { "max_position_embeddings": 9, "vocab_size": 8, "eos_token_id": 5 } }"#,
                9,
            ),
        ] {
            std::fs::write(&config, text).unwrap();
            let outline = ModelOutline::load(folder.path()).unwrap();
            assert_eq!((outline.context, outline.vocabulary, outline.parameters), (context, 8, 6));
            assert_eq!(outline.generation.eos_token_ids, [5]);
        }
        std::fs::write(&config, r#"{ "model_type": "x" }"#).unwrap();
        let error = ModelOutline::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("max_position_embeddings"), "{error}");
    }
}
