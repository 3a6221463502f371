//! A model: its weights, loading and saving.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use rloom_core::{Purpose, RandomKey};
use rloom_ops::{AttentionShape, Buf, Ctx, Element};

use crate::adapter::{self, Adapter, PackedAdapter};
use crate::base::Base;
use crate::buf_pool::BufPool;
use crate::checkpoint::{Checkpoint, LowBits, TensorFile, TensorOut, Values, write_tensors};
use crate::layer::{Layer, RopeTables};
use crate::packed::{PackedForm, PackedModel, PackedWeights};
use crate::tensors::{TensorSet, TensorSpec, ValueHead, named, specs, value_head_shapes};
use crate::{AdapterError, CheckpointError, ConfigError, Dtype, GenerationConfig, ModelConfig, OutputHeads};

/// A decoder-only transformer with the heads that its configuration names, and a LoRA adapter, if it has one.
///
/// A clone shares the weights until one of the two changes them; an adapter's changes leave its base shared. The packed
/// forms that the kernels read are created on first use and shared by training and decoding until the weights change.
#[derive(Debug)]
pub struct Model {
    pub(crate) base: Arc<Base>,
    pub(crate) adapter: Option<Adapter>,
    pub(crate) pool: Arc<BufPool>,
}

impl Clone for Model {
    fn clone(&self) -> Self {
        // The pool is shared by both: training continues with the copy.
        let pool = Arc::clone(&self.pool);
        Self { base: Arc::clone(&self.base), adapter: self.adapter.clone(), pool }
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
    /// Error of an adapter.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Adapter(#[from] AdapterError),
}

impl LoadError {
    /// True if the path is not that of a model folder (a usage error), rather than of a damaged or unsupported one.
    pub fn is_wrong_path(&self) -> bool {
        matches!(self, Self::Config(ConfigError::NotFound { .. }))
    }
}

impl Model {
    fn with_weights(config: ModelConfig, weights: TensorSet) -> Self {
        Self::with_base(Base::new(config, weights))
    }

    fn with_base(base: Base) -> Self {
        Self { base: Arc::new(base), adapter: None, pool: Arc::new(BufPool::default()) }
    }

    /// Configuration and weights, for a model derived from this one.
    fn into_parts(self) -> (ModelConfig, TensorSet) {
        let base = Arc::unwrap_or_clone(self.base).widened();
        (base.config, base.weights)
    }

    /// A model with random weights: matrices are normal with the configuration's `initializer_range`, norms are 1,
    /// biases and the value head are 0, and the two projections that write to the residual stream are scaled by
    /// `1/√(2·layers)` (Radford et al., 2019, "Language models are unsupervised multitask learners"). Deterministic in
    /// configuration and seed.
    pub fn init(config: &ModelConfig, seed: u64) -> Self {
        let (mut weights, specs) = (TensorSet::zeros(config), specs(config));
        for (index, buf) in weights.bufs_mut().into_iter().enumerate() {
            fill_initially(config, &specs, seed, index, buf);
        }
        Self::with_weights(config.clone(), weights)
    }

    /// As [`init`](Self::init), [frozen](Self::frozen): with bf16, the weights are never in memory as f32 at once.
    pub fn init_frozen(config: &ModelConfig, seed: u64) -> Self {
        if config.dtype == Dtype::F32 {
            return Self::init(config, seed);
        }
        let specs = specs(config);
        let Ok(base) = Base::packed_alone(config.clone(), TensorSet::zeros(config), |index, buf| {
            fill_initially(config, &specs, seed, index, buf);
            Ok::<_, std::convert::Infallible>(())
        });
        Self::with_base(base)
    }

    /// Loads the Hugging Face folder of a causal language model: `config.json` and `safetensors` weights, single or
    /// sharded, in f32, f16 or bf16; or the folder of a PEFT adapter, with its base. The model has no value head.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        if adapter::is_adapter(folder) {
            let load = |base: &Path| Self::load_as(base, OutputHeads::Language);
            return Self::load_adapter(folder, OutputHeads::Language, &load);
        }
        Self::load_as(folder, OutputHeads::Language)
    }

    /// As [`load`](Self::load), for a base that is not trained, computing in `dtype`: with bf16, its matrices are in memory
    /// once, in the layout of the kernels.
    pub fn load_frozen(folder: &Path, dtype: Dtype) -> Result<Self, LoadError> {
        if dtype == Dtype::F32 {
            return Self::load(folder);
        }
        if adapter::is_adapter(folder) {
            return Self::load_adapter(folder, OutputHeads::Language, &Self::load_packed);
        }
        Self::load_packed(folder)
    }

    /// Loads the Hugging Face folder of a critic: a token classifier with one label.
    pub fn load_critic(folder: &Path) -> Result<Self, LoadError> {
        Self::load_as(folder, OutputHeads::Value)
    }

    /// Loads the Hugging Face folder of a reward model of completions: a sequence classifier with one label, or the folder of a PEFT
    /// adapter with such a head, with its base, which is a causal language model.
    pub fn load_reward(folder: &Path) -> Result<Self, LoadError> {
        Self::load_rewards(folder, OutputHeads::Reward)
    }

    /// As [`load_reward`](Self::load_reward), of a reward model of steps: a token classifier with two labels.
    pub fn load_process_reward(folder: &Path) -> Result<Self, LoadError> {
        Self::load_rewards(folder, OutputHeads::ProcessReward)
    }

    /// Heads of the model in a folder, or of a reward model's adapter; those of a policy if it cannot be read.
    pub fn heads_of(folder: &Path) -> OutputHeads {
        adapter::heads_of(folder).unwrap_or_else(|| ModelConfig::heads_of(folder))
    }

    fn load_rewards(folder: &Path, heads: OutputHeads) -> Result<Self, LoadError> {
        if adapter::is_adapter(folder) {
            let load = |base: &Path| Self::load_as(base, OutputHeads::Language);
            return Self::load_adapter(folder, heads, &load);
        }
        Self::load_as(folder, heads)
    }

    fn load_as(folder: &Path, heads: OutputHeads) -> Result<Self, LoadError> {
        let file = OpenModel::open(folder, heads)?;
        let mut weights = TensorSet::zeros(&file.config);
        for (index, buf) in weights.bufs_mut().into_iter().enumerate() {
            file.read(index, buf)?;
        }
        let mut base = Base::new(file.config, weights);
        base.folder = Some(folder.to_owned());
        Ok(Self::with_base(base))
    }

    fn load_packed(folder: &Path) -> Result<Self, LoadError> {
        let file = OpenModel::open(folder, OutputHeads::Language)?;
        let weights = TensorSet::zeros(&file.config);
        let mut base = Base::packed_alone(file.config.clone(), weights, |index, buf| file.read(index, buf))?;
        base.folder = Some(folder.to_owned());
        Ok(Self::with_base(base))
    }

    /// Adds a value head of zeros, so that all initial values are exactly 0. Does nothing if there is a value head.
    #[must_use]
    pub fn with_value_head(self) -> Self {
        if self.config().output_heads.value() {
            return self;
        }
        if self.adapter.is_some() {
            return self.with_adapter_heads(OutputHeads::LanguageAndValue);
        }
        let (mut config, mut weights) = self.into_parts();
        config.output_heads = OutputHeads::LanguageAndValue;
        weights.value = ValueHead::zeros(&config);
        Self::with_weights(config, weights)
    }

    /// Sets the dtype of matrix products.
    #[must_use]
    pub fn with_dtype(self, dtype: Dtype) -> Self {
        if self.config().dtype == dtype {
            return self;
        }
        let Self { base, adapter, .. } = self;
        let Base { mut config, weights, folder, .. } = Arc::unwrap_or_clone(base).widened();
        config.dtype = dtype;
        let mut base = Base::new(config, weights);
        base.folder = folder;
        Self { adapter: adapter.map(|adapter| adapter.with_dtype(dtype)), ..Self::with_base(base) }
    }

    /// Removes the value head of a policy, as [`save`](Self::save) does. Does nothing for a critic.
    #[must_use]
    pub fn without_value_head(self) -> Self {
        if self.config().output_heads != OutputHeads::LanguageAndValue {
            return self;
        }
        if self.adapter.is_some() {
            return self.with_adapter_heads(OutputHeads::Language);
        }
        let (mut config, mut weights) = self.into_parts();
        config.output_heads = OutputHeads::Language;
        weights.value = None;
        Self::with_weights(config, weights)
    }

    /// A critic with this model's backbone and a value head of zeros, so that all initial values are exactly 0. The
    /// language head is not copied, an adapter is merged.
    #[must_use]
    pub fn to_critic(&self) -> Self {
        self.to_values(OutputHeads::Value)
    }

    /// A reward model of completions with this model's backbone and a value head of zeros. An adapter is kept, over the same base;
    /// otherwise the language head is not copied.
    #[must_use]
    pub fn to_reward(&self) -> Self {
        self.to_rewards(OutputHeads::Reward)
    }

    /// A reward model of steps, as [`to_reward`](Self::to_reward).
    #[must_use]
    pub fn to_process_reward(&self) -> Self {
        self.to_rewards(OutputHeads::ProcessReward)
    }

    fn to_rewards(&self, heads: OutputHeads) -> Self {
        match self.adapter {
            Some(_) => self.clone().with_adapter_heads(heads),
            None => self.to_values(heads),
        }
    }

    fn to_values(&self, heads: OutputHeads) -> Self {
        if self.adapter.is_some() || self.base.is_frozen() {
            return self.merged().to_values(heads);
        }
        let mut config = self.config().clone();
        config.output_heads = heads;
        let weights = self.weights();
        let weights = TensorSet {
            embedding: weights.embedding.clone(),
            layers: weights.layers.clone(),
            norm: weights.norm.clone(),
            head: None,
            value: ValueHead::zeros(&config),
        };
        Self::with_weights(config, weights)
    }

    /// Writes `config.json`, `generation_config.json` (not for a critic or a reward model, which generate nothing) and
    /// `model.safetensors` (f32) to an existing folder. Equal weights give equal bytes. A policy's folder is identical
    /// with and without a value head, which is saved to a separate file ([`save_value_head`](Self::save_value_head)).
    /// Of a model with an adapter, the adapter is written in PEFT's format instead of the weights.
    /// Files are neither synced nor renamed: atomic checkpoints are the caller's responsibility.
    pub fn save(&self, folder: &Path, generation: &GenerationConfig) -> Result<(), LoadError> {
        if self.is_frozen() {
            return self.merged().save(folder, generation);
        }
        crate::generation::write_json(&folder.join("config.json"), &self.config().to_json())?;
        if self.config().output_heads.language() {
            generation.save(folder)?;
        }
        if self.adapter.is_some() {
            return Ok(self.save_adapter(folder)?);
        }
        let tensors = tensors_out(self.folder_tensors(), "");
        write_tensors(&folder.join("model.safetensors"), &[("format", "pt".into())], tensors)?;
        Ok(())
    }

    /// Writes the value head (`score.weight`, `[1, D]`, and `score.bias`, `[1]`) to a `safetensors` file. Fails for a
    /// model without one.
    pub fn save_value_head(&self, path: &Path) -> Result<(), CheckpointError> {
        let mut tensors = tensors_out(self.trained_tensors().filter(|(spec, _)| spec.is_value_head()), "");
        if tensors.is_empty() {
            return Err(no_value_head(path));
        }
        for tensor in &mut tensors {
            own_name(&mut tensor.name);
        }
        write_tensors(path, &[("format", "pt".into())], tensors)
    }

    /// Reads a file of [`save_value_head`](Self::save_value_head). Fails for a model without a value head.
    pub fn load_value_head(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let file = TensorFile::open(path)?;
        let shapes: Vec<_> = value_head_shapes(self.config()).collect();
        let value = match &mut self.adapter {
            Some(adapter) => adapter.tensors_mut().value.as_mut(),
            None => self.weights_mut().value.as_mut(),
        };
        let Some(value) = value else {
            return Err(no_value_head(path));
        };
        for ((name, shape), buf) in shapes.iter().zip(value.bufs_mut()) {
            file.read_into(name, shape, buf.as_mut_slice())?;
        }
        Ok(())
    }

    /// Configuration of the model. The heads are those of the adapter, if there is one.
    pub fn config(&self) -> &ModelConfig {
        self.adapter.as_ref().map_or(&self.base.config, |adapter| &adapter.model)
    }

    /// Sets the special tokens that [`save`](Self::save) writes to `config.json`.
    pub fn set_special_tokens(&mut self, bos: Option<u32>, eos: &[u32], pad: Option<u32>) {
        let config = match &mut self.adapter {
            Some(adapter) => &mut adapter.model,
            None => &mut Arc::make_mut(&mut self.base).config,
        };
        config.bos_token_id = bos;
        config.eos_token_ids = eos.to_vec();
        config.pad_token_id = pad;
    }

    /// Number of parameters, without those of an adapter.
    pub fn parameter_count(&self) -> u64 {
        self.specs().iter().map(|spec| spec.len() as u64).sum()
    }

    /// Tensors of the weights, without those of an adapter, with their Hugging Face names, in layer order.
    pub fn named_tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        self.weights().named(self.specs())
    }

    /// Tensors that are trained, by the names that they have in files: those of the adapter, or all.
    pub fn trained_tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        named(self.trained_bufs(), self.trained_specs())
    }

    /// Buffers of what is trained, in the order of [`TensorSpec::buffer`].
    pub(crate) fn trained_bufs(&self) -> Vec<&Buf> {
        match &self.adapter {
            Some(adapter) => adapter.tensors.bufs(),
            None => self.weights().bufs(),
        }
    }

    pub(crate) fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.base.specs
    }

    pub(crate) fn trained_specs(&self) -> &Arc<[TensorSpec]> {
        self.adapter.as_ref().map_or(self.specs(), |adapter| &adapter.specs)
    }

    /// Mutable access to what is trained. Invalidates its packed copies.
    pub(crate) fn trained_mut(&mut self) -> Vec<&mut Buf> {
        match &mut self.adapter {
            Some(adapter) => adapter.tensors_mut().bufs_mut(),
            None => Arc::make_mut(&mut self.base).weights_mut().bufs_mut(),
        }
    }

    /// Moves the trained tensors towards those of a model of the same shape: `(1 − share)·self + share·other`, computed in f64 and
    /// rounded once. A value head that only `other` has is left out; weights without f32 matrices in rows get them.
    pub fn mix(&mut self, other: &Self, share: f64) {
        if self.is_frozen() {
            *self = self.merged();
        }
        let theirs = match &other.adapter {
            Some(adapter) => adapter.tensors.bufs(),
            None => other.weights().bufs(),
        };
        for (own, theirs) in self.trained_mut().into_iter().zip(theirs) {
            for (x, &y) in own.as_mut_slice().iter_mut().zip(theirs.as_slice()) {
                *x = ((1.0 - share) * f64::from(*x) + share * f64::from(y)) as f32;
            }
        }
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// Weights; a frozen base has no matrices among them.
    pub(crate) fn weights(&self) -> &TensorSet {
        &self.base.weights
    }

    /// Mutable access to the weights. Invalidates the packed copies.
    pub(crate) fn weights_mut(&mut self) -> &mut TensorSet {
        Arc::make_mut(&mut self.base).weights_mut()
    }

    pub(crate) fn packed(&self, ctx: &Ctx) -> PackedForm<'_> {
        let heads = self.config().output_heads;
        let adapter = self.adapter.as_ref().map(|adapter| adapter.packed(ctx));
        match (&**self.base.packed(ctx), adapter) {
            (PackedWeights::F32(set), Some(PackedAdapter::F32(adapter))) => {
                PackedForm::F32(PackedModel { set, adapter: Some(adapter), heads })
            }
            (PackedWeights::Bf16(set), Some(PackedAdapter::Bf16(adapter))) => {
                PackedForm::Bf16(PackedModel { set, adapter: Some(adapter), heads })
            }
            // An adapter is packed in the dtype of its base.
            (PackedWeights::F32(set), _) => PackedForm::F32(PackedModel { set, adapter: None, heads }),
            (PackedWeights::Bf16(set), _) => PackedForm::Bf16(PackedModel { set, adapter: None, heads }),
        }
    }

    pub(crate) fn layer<'a, E: Element>(&'a self, packed: PackedModel<'a, E>, index: usize) -> Layer<'a, E> {
        let adapter = self.adapter.as_ref().zip(packed.adapter);
        Layer {
            config: self.config(),
            weights: &self.weights().layers[index],
            packed: &packed.set.layers[index],
            index,
            adapter: adapter.map(|(adapter, packed)| (&adapter.tensors.layers[index], &packed.layers[index])),
            dropout: None,
        }
    }

    /// The value head, if there is one: that of the adapter, or that of the weights.
    pub(crate) fn value_head(&self) -> Option<&ValueHead> {
        match &self.adapter {
            Some(adapter) => adapter.tensors.value.as_ref(),
            None => self.weights().value.as_ref(),
        }
    }

    pub(crate) fn rope(&self) -> &RopeTables {
        &self.base.rope
    }

    /// Size of the buffers that the steps so far have taken for activations and derivatives and that the next one reuses, in bytes.
    pub fn activation_buffers(&self) -> usize {
        self.pool.bytes()
    }

    pub(crate) fn buf_pool(&self) -> &Arc<BufPool> {
        &self.pool
    }
}

/// Writes the initial values of the tensors of one buffer, which has zeros.
fn fill_initially(config: &ModelConfig, specs: &[TensorSpec], seed: u64, buffer: usize, buf: &mut Buf) {
    let std = config.initializer_range;
    let residual_std = std / (2.0 * config.layers as f64).sqrt();
    let of_buffer = specs.iter().enumerate().filter(|(_, spec)| spec.buffer == buffer);
    for (index, spec) in of_buffer.filter(|(_, spec)| !spec.is_value_head()) {
        let values = &mut buf.as_mut_slice()[spec.offset..][..spec.len()];
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
}

/// Heads and window of a layer.
pub(crate) fn attention_shape(c: &ModelConfig, layer: usize) -> AttentionShape {
    AttentionShape { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim, window: c.windows[layer] }
}

pub(crate) fn tensors_out<'a>(
    named: impl Iterator<Item = (&'a TensorSpec, &'a [f32])>,
    prefix: &str,
) -> Vec<TensorOut<'a>> {
    named
        .map(|(spec, values)| TensorOut {
            name: format!("{prefix}{}", spec.name),
            shape: Cow::Borrowed(&spec.shape),
            values: Values::Floats(values),
        })
        .collect()
}

/// Removes the start of the name of an adapter's tensor.
fn own_name(name: &mut String) {
    if name.starts_with(adapter::PREFIX) {
        name.drain(..adapter::PREFIX.len());
    }
}

fn no_value_head(path: &Path) -> CheckpointError {
    CheckpointError::NoValueHead { path: path.to_owned() }
}

const HEAD: &str = "lm_head.weight";

/// A model folder that is being read.
struct OpenModel {
    config: ModelConfig,
    checkpoint: Checkpoint,
    /// Makes weights in bf16 exact.
    low_bits: Option<LowBits>,
    specs: Vec<TensorSpec>,
}

impl OpenModel {
    fn open(folder: &Path, heads: OutputHeads) -> Result<Self, LoadError> {
        let config = ModelConfig::from_file_as(&folder.join("config.json"), heads)?;
        let checkpoint = Checkpoint::open(folder)?;
        let specs = specs(&config);
        let tied = heads.language() && config.tie_embeddings;
        // Old Llama files contain the rotary frequencies, and some tied models a copy of the embedding as head.
        checkpoint.check(&specs, |name| name.ends_with("rotary_emb.inv_freq") || (tied && name == HEAD))?;
        Ok(Self { config, checkpoint, low_bits: LowBits::open(folder)?, specs })
    }

    /// Reads the tensors of one buffer.
    fn read(&self, index: usize, buf: &mut Buf) -> Result<(), CheckpointError> {
        for spec in self.specs.iter().filter(|spec| spec.buffer == index) {
            let to = &mut buf.as_mut_slice()[spec.offset..][..spec.len()];
            self.checkpoint.read_into(&spec.name, &spec.shape, to)?;
            if let Some(low_bits) = &self.low_bits {
                low_bits.add_to(&spec.name, &spec.shape, to)?;
            }
        }
        let tied = self.config.output_heads.language() && self.config.tie_embeddings;
        if index == 0 && tied && self.checkpoint.has(HEAD) {
            check_tied_head(&self.checkpoint, &self.specs[0], buf.as_slice())?;
        }
        Ok(())
    }
}

/// A tied head stored in a file must equal the embedding: otherwise `transformers` unties the two.
fn check_tied_head(
    checkpoint: &Checkpoint,
    embedding: &TensorSpec,
    values: &[f32],
) -> Result<(), CheckpointError> {
    let mut head = vec![0.0; embedding.len()];
    checkpoint.read_into(HEAD, &embedding.shape, &mut head)?;
    if head == values {
        return Ok(());
    }
    Err(CheckpointError::UnexpectedTensor { path: checkpoint.path_of(HEAD), name: HEAD.into(), more: 0 })
}
