//! A model: its weights, loading and saving.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rloom_core::{Purpose, RandomKey};
use rloom_ops::{AttentionShape, Ctx, Element};

use crate::buf_pool::BufPool;
use crate::checkpoint::{Checkpoint, TensorFile, TensorOut, write_tensors};
use crate::layer::{Layer, RopeTables};
use crate::packed::{PackedSet, PackedWeights};
use crate::tensors::{TensorSet, TensorSpec, specs, value_head_zeros};
use crate::{CheckpointError, ConfigError, Dtype, GenerationConfig, ModelConfig, OutputHeads};

/// A decoder-only transformer with f32 weights and the heads that its configuration names.
///
/// Cloning copies the weights. The packed forms that the kernels read are created on first use and shared by training
/// and decoding until the weights change.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    specs: Arc<[TensorSpec]>,
    weights: TensorSet,
    packed: OnceLock<PackedWeights>,
    /// Packed forms of outdated weights, whose memory is reused.
    stale: Mutex<Option<PackedWeights>>,
    rope: RopeTables,
    pool: Arc<BufPool>,
}

impl Clone for Model {
    fn clone(&self) -> Self {
        // The pool is shared by both: training continues with the copy.
        let pool = Arc::clone(&self.pool);
        Self { pool, ..Self::with_weights(self.config.clone(), self.weights.clone()) }
    }
}

/// A model folder that cannot be loaded or saved.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum LoadError {
    /// Error in `config.json` or `generation_config.json`.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] ConfigError),
    /// Error in the weights.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl LoadError {
    /// True if the path is not that of a model folder (a usage error), rather than of a damaged or unsupported one.
    pub fn is_wrong_path(&self) -> bool {
        matches!(self, Self::Config(ConfigError::NotFound { .. }))
    }
}

impl Model {
    fn with_weights(config: ModelConfig, weights: TensorSet) -> Self {
        let specs = specs(&config).into();
        Self {
            config,
            specs,
            weights,
            packed: OnceLock::new(),
            stale: Mutex::new(None),
            rope: RopeTables::default(),
            pool: Arc::new(BufPool::default()),
        }
    }

    /// A model with random weights: matrices are normal with the configuration's `initializer_range`, norms are 1,
    /// biases and the value head are 0, and the two projections that write to the residual stream are scaled by
    /// `1/√(2·layers)` (Radford et al., 2019, "Language models are unsupervised multitask learners"). Deterministic in
    /// configuration and seed.
    pub fn init(config: &ModelConfig, seed: u64) -> Self {
        let mut weights = TensorSet::zeros(config);
        let std = config.initializer_range;
        let residual_std = std / (2.0 * config.layers as f64).sqrt();
        let specs = specs(config);
        let mut bufs = weights.bufs_mut();
        for (index, spec) in specs.iter().enumerate() {
            let values = &mut bufs[spec.buffer].as_mut_slice()[spec.offset..][..spec.len()];
            if spec.is_value_head() {
                continue;
            }
            if spec.decays {
                let writes_residual =
                    spec.name.ends_with("o_proj.weight") || spec.name.ends_with("down_proj.weight");
                let std = if writes_residual { residual_std } else { std };
                let stream = RandomKey::new(seed, 0, Purpose::Init, index as u64).stream();
                for (i, value) in values.iter_mut().enumerate() {
                    *value = (std * stream.normal(i as u64)) as f32;
                }
            } else if spec.name.ends_with("norm.weight") {
                values.fill(1.0);
            }
        }
        Self::with_weights(config.clone(), weights)
    }

    /// Loads the Hugging Face folder of a causal language model: `config.json` and `safetensors` weights, single or
    /// sharded, in f32, f16 or bf16. The model has no value head.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        Self::load_as(folder, OutputHeads::Language)
    }

    /// Loads the Hugging Face folder of a critic: a token classifier with one label.
    pub fn load_critic(folder: &Path) -> Result<Self, LoadError> {
        Self::load_as(folder, OutputHeads::Value)
    }

    fn load_as(folder: &Path, heads: OutputHeads) -> Result<Self, LoadError> {
        let config = ModelConfig::from_file_as(&folder.join("config.json"), heads)?;
        let checkpoint = Checkpoint::open(folder)?;
        let specs = specs(&config);
        let tied = heads.language() && config.tie_embeddings;
        // Old Llama files contain the rotary frequencies, and some tied models a copy of the embedding as head.
        checkpoint.check(&specs, |name| name.ends_with("rotary_emb.inv_freq") || (tied && name == HEAD))?;
        let mut weights = TensorSet::zeros(&config);
        let mut bufs = weights.bufs_mut();
        for spec in &specs {
            let to = &mut bufs[spec.buffer].as_mut_slice()[spec.offset..][..spec.len()];
            checkpoint.read_into(&spec.name, &spec.shape, to)?;
        }
        if tied && checkpoint.has(HEAD) {
            check_tied_head(&checkpoint, &specs[0], &weights)?;
        }
        Ok(Self::with_weights(config, weights))
    }

    /// Adds a value head of zeros, so that all initial values are exactly 0. Does nothing if there is a value head.
    #[must_use]
    pub fn with_value_head(self) -> Self {
        if self.config.output_heads.value() {
            return self;
        }
        let Self { mut config, mut weights, .. } = self;
        config.output_heads = OutputHeads::LanguageAndValue;
        weights.value = Some(value_head_zeros(&config));
        Self::with_weights(config, weights)
    }

    /// Sets the dtype of matrix products.
    #[must_use]
    pub fn with_dtype(self, dtype: Dtype) -> Self {
        if self.config.dtype == dtype {
            return self;
        }
        let Self { mut config, weights, .. } = self;
        config.dtype = dtype;
        Self::with_weights(config, weights)
    }

    /// Removes the value head of a policy, as [`save`](Self::save) does. Does nothing for a critic.
    #[must_use]
    pub fn without_value_head(self) -> Self {
        if self.config.output_heads != OutputHeads::LanguageAndValue {
            return self;
        }
        let Self { mut config, mut weights, .. } = self;
        config.output_heads = OutputHeads::Language;
        weights.value = None;
        Self::with_weights(config, weights)
    }

    /// A critic with this model's backbone and a value head of zeros, so that all initial values are exactly 0. The
    /// language head is not copied.
    #[must_use]
    pub fn to_critic(&self) -> Self {
        let mut config = self.config.clone();
        config.output_heads = OutputHeads::Value;
        let weights = TensorSet {
            embedding: self.weights.embedding.clone(),
            layers: self.weights.layers.clone(),
            norm: self.weights.norm.clone(),
            head: None,
            value: Some(value_head_zeros(&config)),
        };
        Self::with_weights(config, weights)
    }

    /// Writes `config.json`, `generation_config.json` (not for a critic, which generates nothing) and
    /// `model.safetensors` (f32) to an existing folder. Equal weights give equal bytes. A policy's folder is identical
    /// with and without a value head, which is saved to a separate file ([`save_value_head`](Self::save_value_head)).
    /// Files are neither synced nor renamed: atomic checkpoints are the caller's responsibility.
    pub fn save(&self, folder: &Path, generation: &GenerationConfig) -> Result<(), LoadError> {
        crate::generation::write_json(&folder.join("config.json"), &self.config.to_json())?;
        let policy = self.config.output_heads.language();
        if policy {
            generation.save(folder)?;
        }
        let tensors =
            tensors_out(self.named_tensors().filter(|(spec, _)| !(policy && spec.is_value_head())), "");
        write_tensors(&folder.join("model.safetensors"), &[("format", "pt".into())], tensors)?;
        Ok(())
    }

    /// Writes the value head (`score.weight`, `[1, D]`, and `score.bias`, `[1]`) to a `safetensors` file. Fails for a
    /// model without one.
    pub fn save_value_head(&self, path: &Path) -> Result<(), CheckpointError> {
        let tensors = tensors_out(self.named_tensors().filter(|(spec, _)| spec.is_value_head()), "");
        if tensors.is_empty() {
            return Err(no_value_head(path));
        }
        write_tensors(path, &[("format", "pt".into())], tensors)
    }

    /// Reads a file of [`save_value_head`](Self::save_value_head). Fails for a model without a value head.
    pub fn load_value_head(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let file = TensorFile::open(path)?;
        let specs = Arc::clone(&self.specs);
        let Some(value) = &mut self.weights_mut().value else {
            return Err(no_value_head(path));
        };
        for (spec, buf) in specs.iter().filter(|spec| spec.is_value_head()).zip(value) {
            file.read_into(&spec.name, &spec.shape, buf.as_mut_slice())?;
        }
        Ok(())
    }

    /// Configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sets the special tokens that [`save`](Self::save) writes to `config.json`.
    pub fn set_special_tokens(&mut self, bos: Option<u32>, eos: &[u32], pad: Option<u32>) {
        self.config.bos_token_id = bos;
        self.config.eos_token_ids = eos.to_vec();
        self.config.pad_token_id = pad;
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> u64 {
        self.specs.iter().map(|spec| spec.len() as u64).sum()
    }

    /// Tensors with their Hugging Face names, in layer order.
    pub fn named_tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        self.weights.named(&self.specs)
    }

    pub(crate) fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    pub(crate) fn weights(&self) -> &TensorSet {
        &self.weights
    }

    /// Mutable access to the weights. Invalidates the packed copies.
    pub(crate) fn weights_mut(&mut self) -> &mut TensorSet {
        if let Some(packed) = self.packed.take() {
            *self.stale.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(packed);
        }
        &mut self.weights
    }

    pub(crate) fn packed(&self, ctx: &Ctx) -> &PackedWeights {
        self.packed.get_or_init(|| {
            let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner).take();
            match stale {
                Some(mut packed) => {
                    packed.repack(ctx, &self.weights);
                    packed
                }
                None => PackedWeights::new(ctx, &self.weights, &self.config),
            }
        })
    }

    pub(crate) fn layer<'a, E: Element>(&'a self, packed: &'a PackedSet<E>, index: usize) -> Layer<'a, E> {
        Layer { config: &self.config, weights: &self.weights.layers[index], packed: &packed.layers[index] }
    }

    pub(crate) fn rope(&self) -> &RopeTables {
        &self.rope
    }

    pub(crate) fn buf_pool(&self) -> &Arc<BufPool> {
        &self.pool
    }

    pub(crate) fn attention_shape(&self) -> AttentionShape {
        attention_shape(&self.config)
    }
}

pub(crate) fn attention_shape(c: &ModelConfig) -> AttentionShape {
    AttentionShape { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim }
}

pub(crate) fn tensors_out<'a>(
    named: impl Iterator<Item = (&'a TensorSpec, &'a [f32])>,
    prefix: &str,
) -> Vec<TensorOut<'a>> {
    named
        .map(|(spec, values)| TensorOut {
            name: format!("{prefix}{}", spec.name),
            shape: &spec.shape,
            values,
        })
        .collect()
}

fn no_value_head(path: &Path) -> CheckpointError {
    CheckpointError::NoValueHead { path: path.to_owned() }
}

const HEAD: &str = "lm_head.weight";

/// A tied head stored in a file must equal the embedding: otherwise `transformers` unties the two.
fn check_tied_head(
    checkpoint: &Checkpoint,
    embedding: &TensorSpec,
    weights: &TensorSet,
) -> Result<(), CheckpointError> {
    let mut head = vec![0.0; embedding.len()];
    checkpoint.read_into(HEAD, &embedding.shape, &mut head)?;
    if head == weights.embedding.as_slice() {
        return Ok(());
    }
    Err(CheckpointError::UnexpectedTensor { path: checkpoint.path_of(HEAD), name: HEAD.into(), more: 0 })
}
