//! LoRA adapters: low-rank additions to the linear layers of a base whose weights do not change, and the value head of reward models
//! and critics over it.

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
pub(crate) use files::{FILES, StoredAdapter, TENSORS, base_of, heads_of, is_adapter, save};
pub(crate) use packed::{PackedAdapter, PackedAdapterSet, PackedFactors, PackedLayerFactors};
pub(crate) use tensors::{AdapterLayer, AdapterSet, Factors, PREFIX};

use crate::tensors::{TensorSpec, ValueHead};
use crate::{Dtype, ModelConfig, OutputHeads};

/// An adapter of a model.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) config: LoraConfig,
    /// Configuration of the base with the heads of this adapter, whose value head is trained as a whole.
    pub(crate) model: ModelConfig,
    pub(crate) tensors: AdapterSet,
    pub(crate) specs: Arc<[TensorSpec]>,
    packed: OnceLock<PackedAdapter>,
}

impl Clone for Adapter {
    fn clone(&self) -> Self {
        let (config, model, tensors) = (self.config.clone(), self.model.clone(), self.tensors.clone());
        Self { config, model, tensors, specs: Arc::clone(&self.specs), packed: OnceLock::new() }
    }
}

impl Adapter {
    /// The adapter for a base that computes in another dtype.
    pub(crate) fn with_dtype(mut self, dtype: Dtype) -> Self {
        self.model.dtype = dtype;
        Self { packed: OnceLock::new(), ..self }
    }

    /// An adapter of zeros.
    pub(crate) fn zeros(model: &ModelConfig, config: LoraConfig) -> Self {
        let specs = tensors::specs(model, &config).into();
        let tensors = AdapterSet::zeros(model, &config);
        Self { config, model: model.clone(), tensors, specs, packed: OnceLock::new() }
    }

    /// The adapter with other heads: a value head, if they have one, is zero.
    pub(crate) fn with_heads(mut self, heads: OutputHeads) -> Self {
        self.model.output_heads = heads;
        self.tensors.value = ValueHead::zeros(&self.model);
        let specs = tensors::specs(&self.model, &self.config).into();
        Self { specs, packed: OnceLock::new(), ..self }
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

    pub(crate) fn packed(&self, ctx: &Ctx) -> &PackedAdapter {
        self.packed.get_or_init(|| PackedAdapter::new(ctx, &self.tensors, self.config.scale(), &self.model))
    }
}
