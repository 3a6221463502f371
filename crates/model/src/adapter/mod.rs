//! LoRA adapters: low-rank additions to the linear layers of a base whose weights do not change.

mod backward;
mod config;
mod dora;
mod error;
mod files;
mod packed;
mod tensors;

use std::sync::{Arc, OnceLock};

use rloom_ops::Ctx;

pub use config::{LoraConfig, LoraTarget};
pub use error::AdapterError;

pub(crate) use backward::LayerGradients;
pub(crate) use config::Projection;
pub(crate) use dora::Magnitudes;
pub(crate) use files::{FILES, StoredAdapter, TENSORS, base_of, is_adapter, save};
pub(crate) use packed::{PackedAdapter, PackedAdapterSet, PackedFactors, PackedLayerFactors};
pub(crate) use tensors::{AdapterLayer, AdapterSet, Factors};

use crate::tensors::TensorSpec;
use crate::{Dtype, ModelConfig};

/// An adapter of a model.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) config: LoraConfig,
    pub(crate) tensors: AdapterSet,
    pub(crate) specs: Arc<[TensorSpec]>,
    packed: OnceLock<PackedAdapter>,
}

impl Clone for Adapter {
    fn clone(&self) -> Self {
        Self::of(self.config.clone(), self.tensors.clone(), Arc::clone(&self.specs))
    }
}

impl Adapter {
    fn of(config: LoraConfig, tensors: AdapterSet, specs: Arc<[TensorSpec]>) -> Self {
        Self { config, tensors, specs, packed: OnceLock::new() }
    }

    /// The adapter without the packed copies.
    pub(crate) fn unpacked(self) -> Self {
        Self { packed: OnceLock::new(), ..self }
    }

    /// An adapter of zeros.
    pub(crate) fn zeros(model: &ModelConfig, config: LoraConfig) -> Self {
        let specs = tensors::specs(model, &config).into();
        let tensors = AdapterSet::zeros(model, &config);
        Self::of(config, tensors, specs)
    }

    /// An adapter that adds nothing yet: `A` is random, `B` is zero.
    pub(crate) fn init(model: &ModelConfig, config: LoraConfig, seed: u64) -> Self {
        let mut adapter = Self::zeros(model, config);
        adapter.tensors.init(&adapter.specs, seed);
        adapter
    }

    /// Mutable access to the tensors. Invalidates the packed copies.
    pub(crate) fn tensors_mut(&mut self) -> &mut AdapterSet {
        self.packed = OnceLock::new();
        &mut self.tensors
    }

    pub(crate) fn packed(&self, ctx: &Ctx, dtype: Dtype) -> &PackedAdapter {
        self.packed.get_or_init(|| PackedAdapter::new(ctx, &self.tensors, self.config.scale(), dtype))
    }
}
