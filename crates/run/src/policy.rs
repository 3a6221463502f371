//! Policies in model folders.

use std::path::Path;
use std::sync::Arc;

use rloom_config::{Config, ModelSource};
use rloom_hub::{Hub, HubOptions};
use rloom_model::{Dtype, GenerationConfig, Model};
use rloom_store::checkpoint::Checkpoints;
use rloom_store::directory::INITIAL;
use rloom_text::Tokenizer;

use crate::RunError;

/// A policy: weights, tokenizer and generation settings.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The weights.
    pub model: Arc<Model>,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Stop tokens and recommended sampling.
    pub generation: GenerationConfig,
}

impl Policy {
    /// Opens a Hugging Face folder; computes in `dtype`.
    pub fn open(folder: &Path, dtype: Dtype) -> Result<Self, RunError> {
        let model = Model::load(folder)?.with_dtype(dtype);
        let tokenizer = Tokenizer::load(folder)?;
        let generation = GenerationConfig::load(folder, model.config())?;
        Ok(Self { model: Arc::new(model), tokenizer: Arc::new(tokenizer), generation })
    }

    /// Opens a local folder or a model of the hub.
    pub fn resolve(source: &str, dtype: Dtype, hub: &Hub) -> Result<Self, RunError> {
        let folder = hub.model(source)?;
        Self::open(&folder, dtype)
    }

    /// The policy that the configuration's `[model]` describes, before any training.
    pub fn initial(config: &Config, hub: &Hub) -> Result<Self, RunError> {
        match &config.model {
            ModelSource::Path(source) => Self::resolve(source, config.dtype, hub),
            ModelSource::New { model, tokenizer } => {
                let tokenizer = Tokenizer::characters(tokenizer)?;
                let shape = model.config(tokenizer.vocab_size())?;
                let mut model = Model::init(&shape, config.run.seed).with_dtype(config.dtype);
                let eos = tokenizer.eos_ids().to_vec();
                model.set_special_tokens(tokenizer.bos_id(), &eos, tokenizer.pad_id());
                let generation = GenerationConfig::new(tokenizer.bos_id(), eos, tokenizer.pad_id());
                Ok(Self { model: Arc::new(model), tokenizer: Arc::new(tokenizer), generation })
            }
        }
    }

    /// Tokens that end a completion: those of the tokenizer and of `generation_config.json`.
    pub fn stop_tokens(&self) -> Arc<[u32]> {
        let mut ids = self.tokenizer.eos_ids().to_vec();
        ids.extend(&self.generation.eos_token_ids);
        ids.sort_unstable();
        ids.dedup();
        ids.into()
    }
}

/// The tokenizer of the run in `directory`, from its files alone: nothing is downloaded. `None` if it is not available.
pub(crate) fn tokenizer_of(directory: &Path) -> Option<Tokenizer> {
    let (checkpoints, _) = Checkpoints::open_for_reading(directory.join("checkpoints")).list().ok()?;
    if let Some((_, folder)) = checkpoints.last() {
        return Tokenizer::load(folder).ok();
    }
    if let Ok(tokenizer) = Tokenizer::load(&directory.join(INITIAL)) {
        return Some(tokenizer);
    }
    let config = Config::load(&[directory.join("config.toml")], &[] as &[&str]).ok()?;
    match &config.model {
        ModelSource::Path(source) => {
            let cache = Hub::new(HubOptions { offline: true, ..HubOptions::from_env() });
            Tokenizer::load(&cache.model(source).ok()?).ok()
        }
        ModelSource::New { tokenizer, .. } => Tokenizer::characters(tokenizer).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_checkpoint_has_the_tokenizer_of_its_initial_model() {
        let run = tempfile::tempdir().unwrap();
        assert!(tokenizer_of(run.path()).is_none());
        let text = "model.new = { layers = 1, hidden_size = 8, heads = 1, intermediate_size = 8, max_positions = 16 }\n\
                    data.generator = 'arithmetic'\nsampling.max_new_tokens = 4\n\
                    reward.components = [{ kind = 'exact' }]\n\
                    [[stage]]\nname = 'rl'\nmethod = 'grpo'\nsteps = 1\ngroups_per_batch = 1\n";
        let config =
            Config::from_text("test.toml", text, &[] as &[&str]).map_err(|errors| errors.to_string());
        let tokenizer = Policy::initial(&config.unwrap(), &Hub::from_env()).unwrap().tokenizer;
        std::fs::create_dir(run.path().join("checkpoints")).unwrap();
        tokenizer.save(&run.path().join(INITIAL)).unwrap();
        let found = tokenizer_of(run.path()).unwrap();
        assert_eq!(found.encode("1+2", false).unwrap(), tokenizer.encode("1+2", false).unwrap());
    }
}
