//! The tensors of a model that are trained: all of them, or those of its adapter.

use rloom_ops::Buf;

use crate::Model;
use crate::adapter::AdapterSet;
use crate::tensors::{TensorSet, TensorSpec, named};

/// Gradients or moments in the shapes of what is trained.
#[derive(Debug, Clone)]
pub(crate) enum TrainedSet {
    Full(TensorSet),
    Adapter(AdapterSet),
}

impl TrainedSet {
    /// Zeros for what is trained of a model.
    pub(crate) fn zeros(model: &Model) -> Self {
        match model.lora() {
            Some(lora) => Self::Adapter(AdapterSet::zeros(model.config(), lora)),
            None => Self::Full(TensorSet::zeros(model.config())),
        }
    }

    /// All buffers, in the order of [`TensorSpec::buffer`].
    pub(crate) fn bufs(&self) -> Vec<&Buf> {
        match self {
            Self::Full(set) => set.bufs(),
            Self::Adapter(set) => set.bufs(),
        }
    }

    /// The buffers of gradients that a backward pass adds to more than once, or in part: all but the layers' matrices.
    pub(crate) fn sums_mut(&mut self) -> Vec<&mut Buf> {
        match self {
            Self::Full(set) => set.sums_mut(),
            Self::Adapter(set) => set.bufs_mut(),
        }
    }

    /// Tensors with their file names.
    pub(crate) fn named<'a>(
        &'a self,
        specs: &'a [TensorSpec],
    ) -> impl Iterator<Item = (&'a TensorSpec, &'a [f32])> {
        named(self.bufs(), specs)
    }
}
