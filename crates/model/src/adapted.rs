//! Models with an adapter.

use std::path::Path;
use std::sync::Arc;

use rloom_ops::Ctx;

use crate::adapter::{self, Adapter, Magnitudes, Projection, StoredAdapter};
use crate::base::Base;
use crate::checkpoint::{LOW_BITS, SINGLE, TensorOut, Values, write_tensors, write_tensors_as};
use crate::model::tensors_out;
use crate::{AdapterError, Dtype, GenerationConfig, LoadError, LoraConfig, Model, OutputHeads, TensorSpec};

impl Model {
    /// This model as the frozen base of a new adapter, which adds nothing yet: `A` is random, `B` is zero. With bf16, the
    /// f32 matrices are freed unless another handle holds them; then all adapters share one copy.
    #[must_use]
    pub fn with_adapter(self, config: LoraConfig, seed: u64) -> Self {
        let adapter = Adapter::init(self.config(), config, seed);
        Self { adapter: Some(adapter), ..self.frozen() }
    }

    /// This model's adapter with other heads: a value head, if they have one, is zero. The base is shared.
    pub(crate) fn with_adapter_heads(self, heads: OutputHeads) -> Self {
        Self { adapter: self.adapter.map(|adapter| adapter.with_heads(heads)), ..self }
    }

    /// This model for use without training of its weights: with bf16, its matrices are kept in bf16 alone.
    #[must_use]
    pub fn frozen(self) -> Self {
        let is_frozen = self.base.is_frozen() || self.config().dtype == Dtype::F32;
        if is_frozen {
            return self;
        }
        let base = match Arc::try_unwrap(self.base) {
            Ok(base) => Arc::new(base.into_frozen()),
            Err(shared) => shared.to_frozen(),
        };
        Self { base, ..self }
    }

    /// The base alone: it shares the weights.
    #[must_use]
    pub fn without_adapter(&self) -> Self {
        Self { adapter: None, ..self.clone() }
    }

    /// This model for scoring and sampling alone: the weights in the layout of the kernels, which are shared with this one
    /// until its weights change. Of a model with an adapter, the base, which does not change, is shared as it is.
    #[must_use]
    pub fn packed_only(&self, ctx: &Ctx) -> Self {
        if self.adapter.is_some() || self.base.is_packed() {
            return self.clone();
        }
        Self { base: Arc::new(self.base.packed_only(ctx)), ..self.clone() }
    }

    /// This model for sampling with matrices of 8 bits ([`Packed::quantized`](rloom_ops::Packed::quantized)): those of the
    /// layers and of the language head, which a decode step reads whole. An adapter and the embedding keep their precision.
    /// Models that share a base share its quantized form.
    #[must_use]
    pub fn quantized(&self, ctx: &Ctx) -> Self {
        Self { base: self.base.quantized(ctx), ..self.clone() }
    }

    /// True if the weights have no f32 matrices: those of an adapter are in f32.
    pub(crate) fn is_frozen(&self) -> bool {
        self.adapter.is_none() && self.base.is_frozen()
    }

    /// Digest of weights without f32 matrices; `None` for others, whose tensors can be read.
    pub fn frozen_digest(&self) -> Option<u64> {
        self.is_frozen().then(|| self.base.digest())
    }

    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// Shape of the adapter, if there is one.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.adapter.as_ref().map(|adapter| &adapter.config)
    }

    /// True if both models have the same base in memory.
    pub fn shares_base(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.base, &other.base)
    }

    /// Folder with the weights, or with those of an adapter's base, if they were read from one and have not changed since.
    pub fn folder(&self) -> Option<&Path> {
        self.base.folder.as_deref()
    }

    /// Folder of the base of a stored adapter of any kind; `None` if `folder` does not hold an adapter.
    pub fn base_of(folder: &Path) -> Result<Option<std::path::PathBuf>, LoadError> {
        if !adapter::is_adapter(folder) {
            return Ok(None);
        }
        Ok(Some(adapter::base_of(folder)?))
    }

    /// Shape of a stored adapter; `None` if `folder` does not hold an adapter.
    pub fn lora_of(folder: &Path) -> Result<Option<LoraConfig>, LoadError> {
        if !adapter::is_adapter(folder) {
            return Ok(None);
        }
        Ok(Some(StoredAdapter::open(folder)?.config()?.clone()))
    }

    /// The adapter in a folder over this model, whose weights are shared. An adapter of this model is left behind. With DoRA,
    /// a copy of the weights with the adapter added to them.
    pub fn with_stored_adapter(&self, folder: &Path) -> Result<Self, LoadError> {
        self.with_adapter_of(&StoredAdapter::open(folder)?, OutputHeads::Language)
    }

    /// As [`with_stored_adapter`](Self::with_stored_adapter), of a reward model with the heads that this one has.
    pub fn with_stored_reward_adapter(&self, folder: &Path) -> Result<Self, LoadError> {
        self.with_adapter_of(&StoredAdapter::open(folder)?, self.config().output_heads)
    }

    fn with_adapter_of(&self, stored: &StoredAdapter, heads: OutputHeads) -> Result<Self, LoadError> {
        let adapter = stored.read(&stored.model(&self.base.config, heads)?, || self.base.digest())?;
        let adapted = Self { adapter: Some(adapter), ..self.clone() };
        Ok(match stored.magnitudes(self.config())? {
            None => adapted,
            Some(magnitudes) if self.base.is_frozen() => adapted.merged_with(Some(&magnitudes)).frozen(),
            Some(magnitudes) => adapted.merged_with(Some(&magnitudes)),
        })
    }

    /// True if `folder` holds an adapter that is added to its base when it is read (DoRA).
    pub fn is_merged_when_read(folder: &Path) -> Result<bool, LoadError> {
        Ok(adapter::is_adapter(folder) && StoredAdapter::open(folder)?.is_dora())
    }

    /// Reads an adapter with its base.
    pub(crate) fn load_adapter(
        folder: &Path,
        heads: OutputHeads,
        load: &dyn Fn(&Path) -> Result<Self, LoadError>,
    ) -> Result<Self, LoadError> {
        let stored = StoredAdapter::open(folder)?;
        load(stored.base()?)?.with_adapter_of(&stored, heads)
    }

    /// Writes the adapter in PEFT's format to an existing folder.
    pub(crate) fn save_adapter(&self, folder: &Path) -> Result<(), AdapterError> {
        let path = || folder.to_owned();
        let adapter = self.adapter.as_ref().ok_or_else(|| AdapterError::OtherShape { path: path() })?;
        let base = self.folder().ok_or_else(|| AdapterError::NoBaseFolder { path: path() })?;
        adapter::save(adapter, folder, base, self.base.digest())
    }

    /// Writes the folder of a model for other programs, with the weights rounded to `dtype`; an adapter keeps its own format.
    pub fn export(
        &self,
        folder: &Path,
        generation: &GenerationConfig,
        dtype: Dtype,
    ) -> Result<(), LoadError> {
        if dtype == Dtype::F32 || self.adapter.is_some() {
            return self.save(folder, generation);
        }
        if self.is_frozen() {
            return self.merged().export(folder, generation, dtype);
        }
        let tensors = tensors_out(self.folder_tensors(), "");
        self.write_bf16(folder, generation, tensors)
    }

    /// As [`save`](Self::save), with the weights in bf16 and the bits that they lose in a second file, with which they are read
    /// exactly as they are. An adapter keeps its own format.
    pub fn save_bf16(&self, folder: &Path, generation: &GenerationConfig) -> Result<(), LoadError> {
        if self.adapter.is_some() || self.is_frozen() {
            return self.save(folder, generation);
        }
        self.write_bf16(folder, generation, self.half_of_bits(Values::HighBits))?;
        write_tensors(&folder.join(LOW_BITS), &[], self.half_of_bits(Values::LowBits))?;
        Ok(())
    }

    /// Tensors of the model's folder with 16 bits for each number.
    fn half_of_bits<'a>(&'a self, bits: fn(&'a [f32]) -> Values<'a>) -> Vec<TensorOut<'a>> {
        let mut tensors = Vec::new();
        for (spec, numbers) in self.folder_tensors() {
            let (name, shape) = (spec.name.clone(), spec.shape.clone().into());
            tensors.push(TensorOut { name, shape, values: bits(numbers) });
        }
        tensors
    }

    /// Tensors of the model's folder. The value head of a policy has a file of its own.
    pub(crate) fn folder_tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        let is_policy = self.config().output_heads.language();
        self.named_tensors().filter(move |(spec, _)| !(is_policy && spec.is_value_head()))
    }

    fn write_bf16(
        &self,
        folder: &Path,
        generation: &GenerationConfig,
        tensors: Vec<TensorOut<'_>>,
    ) -> Result<(), LoadError> {
        let mut config = self.config().to_json();
        for key in ["dtype", "torch_dtype"] {
            if let Some(value) = config.get_mut(key) {
                *value = serde_json::json!("bfloat16");
            }
        }
        crate::generation::write_json(&folder.join("config.json"), &config)?;
        if self.config().output_heads.language() {
            generation.save(folder)?;
        }
        write_tensors_as(&folder.join(SINGLE), &[("format", "pt".into())], tensors, Dtype::Bf16)?;
        Ok(())
    }

    /// A model with the adapter added to its weights in f32, `W + s·B·A`, for export; the model itself without an adapter.
    /// If the language head is adapted, it gets a table of its own.
    #[must_use]
    pub fn merged(&self) -> Self {
        self.merged_with(None)
    }

    /// As [`merged`](Self::merged), with the norms of DoRA for the rows of the adapted weights.
    fn merged_with(&self, magnitudes: Option<&Magnitudes>) -> Self {
        let mut base = Base::clone(&self.base).widened();
        let Some(adapter) = &self.adapter else {
            return Self { base: Arc::new(base), ..self.clone() };
        };
        if adapter.tensors.head.is_some() {
            base = base.untied();
        }
        let (weights, scale) = (base.weights_mut(), adapter.config.scale() as f32);
        for (index, (weights, factors)) in weights.layers.iter_mut().zip(&adapter.tensors.layers).enumerate()
        {
            for projection in Projection::ALL {
                if let Some(factors) = factors.of(projection) {
                    factors.add_to(weights.matrix_mut(projection), scale);
                    let norms = magnitudes.map(|norms| norms.of_projection(index, projection));
                    factors.rescale(weights.matrix_mut(projection), norms.unwrap_or_default());
                }
            }
        }
        if let Some((factors, head)) = adapter.tensors.head.as_ref().zip(weights.head.as_mut()) {
            factors.add_to(head, scale);
            factors.rescale(head, magnitudes.map(Magnitudes::of_head).unwrap_or_default());
        }
        if adapter.model.output_heads.value() {
            base = base.with_heads(&adapter.model, adapter.tensors.value.clone());
        }
        Self { base: Arc::new(base), adapter: None, ..self.clone() }
    }
}
