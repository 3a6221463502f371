//! A model: its weights, where they come from and where they go.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rloom_core::{Purpose, RandomKey};
use rloom_ops::{AttentionShape, Ctx};

use crate::checkpoint::{Checkpoint, TensorOut, write_tensors};
use crate::layer::{Layer, PackedSet, RopeTables};
use crate::tensors::{TensorSet, TensorSpec, specs};
use crate::workspace::Workspace;
use crate::{CheckpointError, ConfigError, GenerationConfig, ModelConfig};

/// A decoder-only transformer with f32 weights.
///
/// Cloning copies the weights. The forms that the kernels read are made on first use and shared by training and
/// decoding until the weights change.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    specs: Arc<[TensorSpec]>,
    weights: TensorSet,
    packed: OnceLock<PackedSet>,
    /// Packed forms of earlier weights, whose memory serves again.
    stale: Mutex<Option<PackedSet>>,
    rope: RopeTables,
    workspace: Arc<Workspace>,
}

impl Clone for Model {
    fn clone(&self) -> Self {
        Self::with_weights(self.config.clone(), self.weights.clone())
    }
}

/// A model folder that cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `config.json` or `generation_config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
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
            workspace: Arc::new(Workspace::default()),
        }
    }

    /// A model with random weights: matrices normal with the configuration's `initializer_range`, norms 1, biases 0,
    /// and the two projections that write to the residual stream scaled by `1/√(2·layers)` (Radford et al., 2019,
    /// "Language models are unsupervised multitask learners"). A function of configuration and seed alone.
    pub fn init(config: &ModelConfig, seed: u64) -> Self {
        let mut weights = TensorSet::zeros(config);
        let std = config.initializer_range;
        let residual_std = std / (2.0 * config.layers as f64).sqrt();
        let specs = specs(config);
        let mut bufs = weights.bufs_mut();
        for (index, spec) in specs.iter().enumerate() {
            let values = &mut bufs[spec.buffer].as_mut_slice()[spec.offset..][..spec.len()];
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

    /// Opens a Hugging Face folder: `config.json` and `safetensors` weights, single or sharded, in f32, f16 or bf16.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        let config = ModelConfig::from_json_file(&folder.join("config.json"))?;
        let checkpoint = Checkpoint::open(folder)?;
        let specs = specs(&config);
        // Old Llama files hold the rotary frequencies, and some tied ones the head beside the embedding.
        checkpoint.check_names(specs.iter().map(|spec| spec.name.as_str()), |name| {
            name.ends_with("rotary_emb.inv_freq") || (config.tie_embeddings && name == HEAD)
        })?;
        let mut weights = TensorSet::zeros(&config);
        let mut bufs = weights.bufs_mut();
        for spec in &specs {
            let to = &mut bufs[spec.buffer].as_mut_slice()[spec.offset..][..spec.len()];
            checkpoint.read_into(&spec.name, &spec.shape, to)?;
        }
        if config.tie_embeddings && checkpoint.has(HEAD) {
            check_tied_head(&checkpoint, &specs[0], &weights)?;
        }
        Ok(Self::with_weights(config, weights))
    }

    /// Writes `config.json`, `generation_config.json` and `model.safetensors` (f32) to an existing folder. The same
    /// weights give the same bytes. Neither synced nor renamed: making a checkpoint whole is the caller's.
    pub fn save(&self, folder: &Path, generation: &GenerationConfig) -> Result<(), LoadError> {
        crate::generation::write_json(&folder.join("config.json"), &self.config.to_json())?;
        generation.save(folder)?;
        let tensors = self.tensors_out("");
        write_tensors(&folder.join("model.safetensors"), &[("format", "pt".into())], tensors)?;
        Ok(())
    }

    fn tensors_out(&self, prefix: &str) -> Vec<TensorOut<'_>> {
        tensors_out(&self.weights, &self.specs, prefix)
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sets the special tokens that the next [`save`](Self::save) writes to `config.json`.
    pub fn set_special_tokens(&mut self, bos: Option<u32>, eos: &[u32], pad: Option<u32>) {
        self.config.bos_token_id = bos;
        self.config.eos_token_ids = eos.to_vec();
        self.config.pad_token_id = pad;
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> u64 {
        self.specs.iter().map(|spec| spec.len() as u64).sum()
    }

    /// The tensors under their Hugging Face names, in layer order.
    pub fn named_tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        self.weights.named(&self.specs)
    }

    /// Gives the memory of finished micro-batches back to the system; it is kept for the next ones otherwise.
    pub fn release_workspace(&self) {
        self.workspace.clear();
    }

    pub(crate) fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    pub(crate) fn weights(&self) -> &TensorSet {
        &self.weights
    }

    /// The weights, to be changed: the packed forms are made anew afterwards.
    pub(crate) fn weights_mut(&mut self) -> &mut TensorSet {
        if let Some(packed) = self.packed.take() {
            *self.stale.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(packed);
        }
        &mut self.weights
    }

    pub(crate) fn packed(&self, ctx: &Ctx) -> &PackedSet {
        self.packed.get_or_init(|| {
            let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner).take();
            match stale {
                Some(mut packed) => {
                    packed.renew(ctx, &self.weights);
                    packed
                }
                None => PackedSet::new(ctx, &self.weights, &self.config),
            }
        })
    }

    pub(crate) fn layer<'a>(&'a self, packed: &'a PackedSet, index: usize) -> Layer<'a> {
        Layer { config: &self.config, weights: &self.weights.layers[index], packed: &packed.layers[index] }
    }

    pub(crate) fn rope(&self) -> &RopeTables {
        &self.rope
    }

    pub(crate) fn workspace(&self) -> &Arc<Workspace> {
        &self.workspace
    }

    pub(crate) fn attention_shape(&self) -> AttentionShape {
        attention_shape(&self.config)
    }
}

pub(crate) fn attention_shape(c: &ModelConfig) -> AttentionShape {
    AttentionShape { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim }
}

pub(crate) fn tensors_out<'a>(
    set: &'a TensorSet,
    specs: &'a [TensorSpec],
    prefix: &str,
) -> Vec<TensorOut<'a>> {
    set.named(specs)
        .map(|(spec, values)| TensorOut {
            name: format!("{prefix}{}", spec.name),
            shape: &spec.shape,
            values,
        })
        .collect()
}

const HEAD: &str = "lm_head.weight";

/// A head that is stored although it is tied must be the embedding: `transformers` unties the two otherwise.
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
