//! Models with an adapter.

use std::path::Path;
use std::sync::Arc;

use rloom_ops::{self as ops, Buf, Ctx};

use crate::adapter::{self, Adapter, Projection, StoredAdapter};
use crate::base::Base;
use crate::checkpoint::{SINGLE, write_tensors_as};
use crate::model::tensors_out;
use crate::{AdapterError, Dtype, GenerationConfig, LoadError, LoraConfig, Model};

impl Model {
    /// This model as the frozen base of a new adapter, which adds nothing yet: `A` is random, `B` is zero. With bf16, the
    /// f32 matrices are freed unless another handle holds them; then all adapters share one copy.
    #[must_use]
    pub fn with_adapter(self, config: LoraConfig, seed: u64) -> Self {
        let adapter = Adapter::init(self.config(), config, seed);
        Self { adapter: Some(adapter), ..self.frozen() }
    }

    /// This model for use without training of its weights: with bf16, its matrices are kept in bf16 alone.
    #[must_use]
    pub fn frozen(self) -> Self {
        let is_frozen = self.base.is_narrow() || self.config().dtype == Dtype::F32;
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

    /// Folder of the base of a stored adapter; `None` if `folder` does not hold an adapter.
    pub fn base_of(folder: &Path) -> Result<Option<std::path::PathBuf>, LoadError> {
        if !adapter::is_adapter(folder) {
            return Ok(None);
        }
        Ok(Some(StoredAdapter::open(folder)?.base()?.to_owned()))
    }

    /// The adapter in a folder over this model, whose weights are shared. An adapter of this model is left behind.
    pub fn with_stored_adapter(&self, folder: &Path) -> Result<Self, LoadError> {
        let stored = StoredAdapter::open(folder)?;
        let adapter = stored.read(self.config(), || self.base.digest())?;
        Ok(Self { adapter: Some(adapter), ..self.clone() })
    }

    /// Reads an adapter with its base.
    pub(crate) fn load_adapter(
        folder: &Path,
        load: &dyn Fn(&Path) -> Result<Self, LoadError>,
    ) -> Result<Self, LoadError> {
        let stored = StoredAdapter::open(folder)?;
        load(stored.base()?)?.with_stored_adapter(folder)
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
        let mut config = self.config().to_json();
        for key in ["dtype", "torch_dtype"] {
            if let Some(value) = config.get_mut(key) {
                *value = serde_json::json!("bfloat16");
            }
        }
        crate::generation::write_json(&folder.join("config.json"), &config)?;
        generation.save(folder)?;
        let tensors = tensors_out(self.named_tensors().filter(|(spec, _)| !spec.is_value_head()), "");
        write_tensors_as(&folder.join(SINGLE), &[("format", "pt".into())], tensors, dtype)?;
        Ok(())
    }

    /// A model with the adapter added to its weights in f32, `W + s·B·A`, for export; the model itself without an adapter.
    #[must_use]
    pub fn merged(&self) -> Self {
        let Some(adapter) = &self.adapter else {
            return Self { base: Arc::new(Base::clone(&self.base).widened()), ..self.clone() };
        };
        let mut base = Base::clone(&self.base).widened();
        let ctx = Ctx::serial();
        for (weights, factors) in base.weights_mut().layers.iter_mut().zip(&adapter.tensors.layers) {
            for projection in Projection::ALL {
                let Some(factors) = factors.of(projection) else { continue };
                let (w, k) = (weights.matrix_mut(projection), factors.shape[1]);
                for member in &factors.members {
                    let (columns, rank) = (&member.columns, member.columns.of_u.len());
                    let mut scaled = Buf::from_slice(&factors.b.as_slice()[member.b.clone()]);
                    ops::scale(&ctx, &mut scaled, adapter.config.scale() as f32);
                    let a =
                        Buf::from_slice(&factors.a.as_slice()[columns.of_u.start * k..columns.of_u.end * k]);
                    let rows = columns.of_projection.len();
                    let mut product = Buf::zeros(rows * k);
                    ops::linear_backward_input::<f32, f32, f32>(
                        &ctx,
                        &mut product,
                        &scaled,
                        rows,
                        &a,
                        rank,
                        k,
                        false,
                    );
                    let w = &mut w.as_mut_slice()[columns.of_projection.start * k..][..rows * k];
                    for (w, add) in w.iter_mut().zip(product.as_slice()) {
                        *w += add;
                    }
                }
            }
        }
        Self { base: Arc::new(base), adapter: None, ..self.clone() }
    }
}
