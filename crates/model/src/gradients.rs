//! Gradients of a model's weights.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use rloom_ops::{self as ops, Buf, Ctx};

use crate::Model;
use crate::tensors::TensorSpec;
use crate::trained::TrainedSet;

/// Gradients of all trained weights, accumulated over micro-batches: those of the adapter, if the model has one.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// The numbers, unless they are cleared. [`bufs`](Self::bufs) and [`named`](Self::named) alone read them.
    set: TrainedSet,
    specs: Arc<[TensorSpec]>,
    /// True if the gradients are zero, whatever the numbers: the next backward pass replaces them.
    cleared: bool,
    /// As many zeros as the largest buffer has numbers, once they are read.
    zeros: OnceLock<Vec<f32>>,
}

impl Gradients {
    /// Zero gradients for the trained weights of `model`.
    pub fn zeros(model: &Model) -> Self {
        Self {
            set: TrainedSet::zeros(model),
            specs: Arc::clone(model.trained_specs()),
            cleared: true,
            zeros: OnceLock::new(),
        }
    }

    /// Resets all gradients to zero. Takes no time: the next backward pass replaces the numbers, where writing zeros and adding
    /// to them would pass through the whole memory twice.
    pub fn clear(&mut self) {
        self.cleared = true;
    }

    /// Prepares for a backward pass that has something to add. Returns what it adds to, and whether it must add to the layers'
    /// matrices too, or replace them.
    pub(crate) fn begin_pass(&mut self, ctx: &Ctx) -> (&mut TrainedSet, bool) {
        let cleared = std::mem::take(&mut self.cleared);
        if cleared {
            for buf in self.set.sums_mut() {
                ops::zero(ctx, buf);
            }
        }
        (&mut self.set, !cleared)
    }

    /// The gradients in the order of [`TensorSpec::buffer`].
    pub(crate) fn bufs(&self) -> impl Iterator<Item = Cow<'_, Buf>> {
        self.set
            .bufs()
            .into_iter()
            .map(|buf| if self.cleared { Cow::Owned(Buf::zeros(buf.len())) } else { Cow::Borrowed(buf) })
    }

    /// Euclidean norm over all weights.
    pub fn norm(&self, ctx: &Ctx) -> f64 {
        self.bufs().map(|buf| ops::sum_squares(ctx, &buf)).sum::<f64>().sqrt()
    }

    /// True if no number is infinite or NaN.
    pub fn all_finite(&self, ctx: &Ctx) -> bool {
        self.bufs().all(|buf| ops::all_finite(ctx, &buf))
    }

    /// Gradients with the Hugging Face names of their weights.
    pub fn named(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        self.set.named(&self.specs).map(|(spec, values)| {
            (spec, if self.cleared { &self.zeros_of_largest()[..values.len()] } else { values })
        })
    }

    fn zeros_of_largest(&self) -> &[f32] {
        self.zeros.get_or_init(|| {
            let largest = self.set.bufs().into_iter().map(Buf::len).max();
            vec![0.0; largest.unwrap_or(0)]
        })
    }

    /// Name of the first weight with a non-finite gradient.
    pub(crate) fn first_not_finite(&self) -> Option<&str> {
        let mut named = self.named();
        named.find(|(_, values)| values.iter().any(|v| !v.is_finite())).map(|(spec, _)| spec.name.as_str())
    }
}
