//! Policies in model folders.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rloom_config::{Config, ModelSource};
use rloom_hub::{Hub, HubOptions};
use rloom_model::{Dtype, GenerationConfig, LoadError, Model, ModelConfig, ModelOutline};
use rloom_store::checkpoint::Checkpoints;
use rloom_store::directory::INITIAL;
use rloom_text::Tokenizer;

use crate::RunError;

/// A policy: weights, tokenizer and generation settings.
///
/// Weights are read into memory when an engine of this process needs them. Other engines read the folder.
#[derive(Debug, Clone)]
pub struct Policy {
    weights: Weights,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Stop tokens and recommended sampling.
    pub generation: GenerationConfig,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Number of parameters.
    pub parameters: u64,
}

/// Place of the weights.
#[derive(Debug, Clone)]
enum Weights {
    /// A model that was initialised in this process.
    Memory(Arc<Model>),
    /// A folder that is read when its weights are needed.
    Folder {
        path: PathBuf,
        dtype: Dtype,
        reading: Reading,
        cached: Arc<Mutex<Cached>>,
        /// Architecture, if the weights have been read.
        shape: Option<Box<ModelConfig>>,
    },
}

/// Form in which the weights of a folder are read.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// All in f32, to be trained.
    Trained,
    /// With bf16, the matrices in bf16 alone.
    Frozen,
}

impl Reading {
    fn read(self, folder: &Path, dtype: Dtype) -> Result<Model, LoadError> {
        match self {
            Self::Trained => Ok(Model::load(folder)?.with_dtype(dtype)),
            Self::Frozen => Model::load_frozen(folder, dtype),
        }
    }
}

/// The model of a folder. It belongs to its users: once they have dropped or changed it, its memory is free.
#[derive(Debug)]
enum Cached {
    /// Read, and not used yet.
    Unused(Arc<Model>),
    Used(Weak<Model>),
}

impl Cached {
    /// The model, if it is in memory.
    fn take(&mut self) -> Option<Arc<Model>> {
        let model = match self {
            Self::Unused(model) => Arc::clone(model),
            Self::Used(model) => model.upgrade()?,
        };
        *self = Self::Used(Arc::downgrade(&model));
        Some(model)
    }
}

impl Policy {
    /// Opens a Hugging Face folder and reads its weights; computes in `dtype`.
    pub fn open(folder: &Path, dtype: Dtype) -> Result<Self, RunError> {
        Self::read(folder, dtype, Reading::Trained)
    }

    /// As [`open`](Self::open), for weights that are not trained: with bf16 they are never in memory as f32.
    pub fn open_frozen(folder: &Path, dtype: Dtype) -> Result<Self, RunError> {
        Self::read(folder, dtype, Reading::Frozen)
    }

    fn read(folder: &Path, dtype: Dtype, reading: Reading) -> Result<Self, RunError> {
        let model = reading.read(folder, dtype)?;
        let tokenizer = Tokenizer::load(folder)?;
        let generation = GenerationConfig::load(folder, model.config())?;
        let policy = Self::in_memory(model, tokenizer, generation);
        let cached = Arc::new(Mutex::new(Cached::Unused(policy.model()?)));
        let shape = Some(Box::new(policy.shape()?));
        let weights = Weights::Folder { path: folder.to_owned(), dtype, reading, cached, shape };
        Ok(Self { weights, ..policy })
    }

    /// Opens a Hugging Face folder of any architecture. Its weights are read only if an engine of this process needs them.
    pub fn open_outside(folder: &Path, dtype: Dtype) -> Result<Self, RunError> {
        let ModelOutline { context, vocabulary, parameters, generation } = ModelOutline::load(folder)?;
        Ok(Self {
            weights: Weights::Folder {
                path: folder.to_owned(),
                dtype,
                reading: Reading::Trained,
                cached: Arc::new(Mutex::new(Cached::Used(Weak::new()))),
                shape: None,
            },
            tokenizer: Arc::new(Tokenizer::load(folder)?),
            generation,
            context,
            vocabulary,
            parameters,
        })
    }

    fn in_memory(model: Model, tokenizer: Tokenizer, generation: GenerationConfig) -> Self {
        Self {
            tokenizer: Arc::new(tokenizer),
            generation,
            context: model.config().max_positions,
            vocabulary: model.config().vocab_size,
            parameters: model.parameter_count(),
            weights: Weights::Memory(Arc::new(model)),
        }
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
                Ok(Self::in_memory(model, tokenizer, generation))
            }
        }
    }

    /// The weights in memory. Reads those of a folder unless they are already there.
    pub fn model(&self) -> Result<Arc<Model>, RunError> {
        match &self.weights {
            Weights::Memory(model) => Ok(Arc::clone(model)),
            Weights::Folder { path, dtype, reading, cached, .. } => {
                let mut cached = cached.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(model) = cached.take() {
                    return Ok(model);
                }
                let model = Arc::new(reading.read(path, *dtype)?);
                *cached = Cached::Used(Arc::downgrade(&model));
                Ok(model)
            }
        }
    }

    /// Architecture of the model, if an engine of this process can compute it.
    pub fn shape(&self) -> Result<ModelConfig, RunError> {
        match &self.weights {
            Weights::Folder { shape: Some(shape), .. } => Ok((**shape).clone()),
            Weights::Folder { path, dtype, .. } => {
                let mut config =
                    ModelConfig::from_json_file(&path.join("config.json")).map_err(LoadError::from)?;
                config.dtype = *dtype;
                Ok(config)
            }
            Weights::Memory(model) => Ok(model.config().clone()),
        }
    }

    /// Folder with the weights; `None` for a model that was initialised in this process.
    pub fn folder(&self) -> Option<&Path> {
        match &self.weights {
            Weights::Memory(_) => None,
            Weights::Folder { path, .. } => Some(path),
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
